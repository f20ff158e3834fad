"""`agentmem run --report`, on a scripted gateway. What the file shows is tested in a browser: `tests/system/page`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from agentmem.v1 import workflow_pb2
from gateway.cli.workflows.report import html
from tests.gateway.cli.conftest import Command
from tests.gateway.cli.workflows.events import ID, RUN, Event
from tests.gateway.cli.workflows.hostile import HOSTILE, SAID
from tests.gateway.cli.workflows.scripted import ScriptedWorkflows


async def test_the_file(workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path) -> None:
    said = await agentmem("run", "--resume", ID, "--report", str(tmp_path / "new" / "report"))
    assert said.exit_code == 0
    assert said.stdout.splitlines()[-1] == f"wrote {tmp_path}/new/report/report.html"
    assert [path.name for path in (tmp_path / "new" / "report").iterdir()] == ["report.html"]
    assert Page((tmp_path / "new" / "report" / "report.html").read_text()).run["workflow"]["workflow_id"] == ID


async def test_beside_json_it_is_told_on_standard_error(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, tmp_path: Path
) -> None:
    said = await agentmem("run", str(file), "--report", str(tmp_path), "--json")
    assert said.exit_code == 0
    assert said.stderr.splitlines() == [f"wrote {tmp_path}/report.html"]


async def test_a_disk_that_refuses(workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    said = await agentmem("run", "--resume", ID, "--report", str(tmp_path))
    assert said.exit_code == 1
    assert said.stderr == f"Error: cannot write the report to {tmp_path}: Is a directory\n"


def page_of(events: list[Event]) -> str:
    """The file of a run of these events."""
    logged = [event for event in events if event.WhichOneof("event") not in ("agent_speaking", "agent_delta")]
    return html(logged[-1].finished.workflow, logged)


class Page(HTMLParser):
    """What a browser makes of a page: its elements, and the run that it holds."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, frozenset[str]]] = []
        self.data = ""
        self._in_run = False
        self.feed(page)
        self.run: dict[str, Any] = json.loads(self.data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, frozenset(name for name, _ in attrs)))
        self._in_run = ("id", "run") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._in_run = False

    def handle_data(self, data: str) -> None:
        self.data += data if self._in_run else ""


def test_it_holds_the_events_of_the_log() -> None:
    page = Page(page_of(RUN))
    logged = [event for event in RUN if event.WhichOneof("event") not in ("agent_speaking", "agent_delta")]
    assert [event["sequence"] for event in page.run["events"]] == [*range(1, len(logged) + 1)]
    spoke = next(event["agent_spoke"] for event in page.run["events"] if "agent_spoke" in event)
    assert (spoke["agent_id"], spoke["text"], spoke["cache"]["match"]) == ("danny", "I saw nothing.", "new")
    assert page.run["workflow"]["state"] == "succeeded"


async def test_how_a_run_failed_is_in_it_though_not_in_its_log(
    workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path
) -> None:
    async def fails(_: Any) -> AsyncIterator[Event]:
        failed = workflow_pb2.Workflow(workflow_id=ID, state=workflow_pb2.WORKFLOW_STATE_FAILED, error="no room")
        for event in RUN[:9]:
            yield event
        yield Event(sequence=RUN[8].sequence, finished=workflow_pb2.WorkflowFinished(workflow=failed))

    workflows.script = fails
    assert (await agentmem("run", "--resume", ID, "--report", str(tmp_path))).exit_code == 1
    page = Page((tmp_path / "report.html").read_text())
    assert (page.run["workflow"]["state"], page.run["workflow"]["error"]) == ("failed", "no room")
    assert [event["sequence"] for event in page.run["events"]] == [1, 2, 3]


def test_what_agents_said_ends_no_script() -> None:
    text = page_of(HOSTILE)
    page = Page(text)
    assert page.elements == Page(page_of(RUN)).elements
    assert [event["agent_spoke"]["text"] for event in page.run["events"] if "agent_spoke" in event] == list(SAID)
    assert "<script>alert" not in text


def test_it_needs_nothing_beside_it() -> None:
    text = page_of(RUN)
    assert re.search(r"default-src 'none'; script-src 'sha256-[^;]* data:; style-src 'sha256-", text)
    assert not {"href", "src"} & {name for _, names in Page(text).elements for name in names}


def test_it_is_written_without_what_only_servers_have() -> None:
    program = """
import sys
for name in ("jinja2", "matplotlib", "numpy", "pydantic", "starlette"):
    sys.modules[name] = None
from gateway.cli.workflows.report import html
from agentmem.v1.workflow_pb2 import Workflow
html(Workflow(), [])
"""
    subprocess.run([sys.executable, "-c", program], check=True)
