"""`agentmem run --report`, on a scripted gateway."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.workflows.report import escape_markdown, html, markdown
from gateway.cli.workflows.state import Run
from gateway.cli.workflows.view import heard, outcome_rows
from tests.gateway.cli.conftest import Command
from tests.gateway.cli.workflows.events import ID, RUN, Event
from tests.gateway.cli.workflows.hostile import HOSTILE, SAID
from tests.gateway.cli.workflows.scripted import ScriptedWorkflows


async def test_the_files(workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path) -> None:
    said = await agentmem("run", "--resume", ID, "--report", str(tmp_path / "new" / "report"))
    assert said.exit_code == 0
    written = {path.name: path.read_text() for path in (tmp_path / "new" / "report").iterdir()}
    assert said.stdout.splitlines()[-3:] == [
        f"wrote {tmp_path}/new/report/{name}" for name in ("report.md", "report.html", "plot.svg")
    ]
    assert set(written) == {"report.md", "report.html", "plot.svg"}
    assert "](plot.svg)" in written["report.md"]
    assert written["plot.svg"][written["plot.svg"].index("<svg") :] in written["report.html"]


async def test_without_matplotlib_there_is_no_plot(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.cli.workflows.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = await agentmem("run", str(file), "--report", str(tmp_path / "report"), "--json")
    assert said.exit_code == 0
    assert said.stderr.splitlines() == [
        "the report has no plot: it takes matplotlib; `pip install 'agentmem[report]'` brings it",
        f"wrote {tmp_path}/report/report.md",
        f"wrote {tmp_path}/report/report.html",
    ]
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.md", "report.html"}


async def test_a_disk_that_refuses(workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()
    said = await agentmem("run", "--resume", ID, "--report", str(tmp_path))
    assert said.exit_code == 1
    assert said.stderr == f"Error: cannot write the report to {tmp_path}: Is a directory\n"


def told(events: list[Event]) -> Run:
    run = Run()
    for event in events:
        run.add(event)
    return run


class Page(HTMLParser):
    """What a browser makes of a page: its elements, what refers elsewhere, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def cells(line: str) -> list[str]:
    """A row of a Markdown table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_what_was_said_by_whom_to_whom() -> None:
    yard, verdict = told(RUN).parts.values()
    ((number, began, said),) = yard.conversation()
    assert [(step.event.agent_id, step.spoke, step.text, heard(step.heard)) for step in said if step.heard] == [
        ("danny", True, "I saw nothing.", "danny → marco"),
        ("marco", True, "The boat is green.", "marco → danny (whisper); warden only learns of it"),
    ]
    assert (said[-1].event.agent_id, said[-1].spoke, said[-1].text) == ("danny", False, "Noted:\nthe boat.")
    assert began is not None
    assert (number, began.channel, list(began.agents)) == (1, "whisper", ["marco", "danny", "warden"])
    assert verdict.outcome is not None
    assert outcome_rows(verdict.outcome.outcome_json) == [("winner", "green"), ("votes", "marco: green, danny: none")]


def test_markdown() -> None:
    text = markdown(told(RUN), "plot.svg")
    assert "> **marco**: The boat is green.<br>marco → danny (whisper); warden only learns of it\n" in text
    assert "> **danny** noted: Noted:<br>the boat.\n" in text
    assert "](plot.svg)" in text
    rows = [cells(line) for line in text.splitlines() if line.startswith(("| yard |", "| verdict |"))]
    assert rows[-1] == ["verdict", "1", "marco", "turn", "EXTEND", "warm", "60", "16", "44", "20 ms", "3"]
    assert [row[3] for row in rows] == ["listening", "turn", "turn", "note", "turn, replayed", "turn"]
    sums = dict(cells(line) for line in text.splitlines() if len(cells(line)) == 2)
    said = [row for row in rows if row[3] != "listening"]
    assert sums["the ledgers of 4 turns and 1 note, as a server without memory prefills them"] == "200"
    assert sum(int(row[6]) for row in said) == 200
    assert sums["prefilled, that of 1 listening included"] == str(sum(int(row[8]) for row in rows)) == "159"
    assert sums["saved"] == "41 (20%)"
    assert sums["reused from memory"] == str(sum(int(row[7]) for row in rows))
    assert "](plot.svg)" not in markdown(told(RUN), None)


def test_html() -> None:
    page = html(told(RUN), '<?xml version="1.0"?><!DOCTYPE svg><svg><title>plot</title></svg>')
    assert page.count("<svg>") == 1
    assert page.count("<!doctype") == page.lower().count("<!doctype") == 1
    text = Page(page).text
    assert "159 tokens were prefilled, where sending each ledger again takes\n200: 20% saved." in text
    assert "marco → danny (whisper); warden only learns of it" in text
    assert "I vote green" in text
    assert "<svg" not in html(told(RUN), None)


def test_a_page_shows_what_agents_said_and_nothing_else() -> None:
    plain = Page(html(told(RUN), None))
    page = Page(html(told(HOSTILE), None))
    assert page.elements == plain.elements
    assert page.attributes == plain.attributes
    assert not {"script", "img", "a", "svg", "link", "iframe"} & page.elements
    assert not {"href", "src", "onload", "onclick"} & page.attributes
    for text in SAID[:-1]:
        assert text in page.text
    assert "\\x1b[2J\\u202e" in page.text
    assert "49" not in page.text  # {{ 7 * 7 }} is a text


def test_markdown_of_what_agents_said_means_nothing() -> None:
    text = markdown(told(HOSTILE), None)
    assert "<script" not in text
    assert set(re.findall(r"<[^>]*>", text)) == {"<br>", "<!-- -->"}
    assert not re.search(r"(?<!\\)(?:!?\[|`|~|\$)", text)
    assert not re.search(r"https?://|www\.", text)
    assert text.count("\n> **") == len(SAID) + 1  # each on a line of its own, however many it had
    quotes = [line for line in text.splitlines() if line.startswith("> ")]
    assert all(line.startswith(("> **a**: ", "> **b** noted: ")) for line in quotes)
    for row in (line for line in text.splitlines() if line.startswith("| p |")):
        assert len(cells(row)) == 11


@given(st.text())
def test_escaped_text_is_one_line_without_meaning(text: str) -> None:
    escaped = escape_markdown(text)
    assert "\n" not in escaped
    bare = re.sub(r"\\[\\`*_\[\]|~$!#]", "", escaped.replace("<br>", "").replace("<!-- -->", ""))
    assert not set("<>`*_[]|~$!#\\") & set(bare)


@pytest.mark.parametrize(
    ("text", "escaped"), [("a_b", "a\\_b"), ("a\n b", "a<br>b"), ("1 < 2 & 3", "1 &lt; 2 &amp; 3")]
)
def test_escaping(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped
