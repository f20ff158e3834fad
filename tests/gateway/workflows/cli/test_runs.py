from __future__ import annotations

import json

import pytest

from agentmem.v1 import workflow_pb2
from gateway.workflows.cli.runs import workflows_table
from tests.gateway.cli.test_tables import LONG_AGO, NOW, assert_fits
from tests.gateway.conftest import Command
from tests.gateway.workflows.cli.events import workflow
from tests.gateway.workflows.cli.scripted import ScriptedWorkflows

RUNNING = workflow_pb2.WORKFLOW_STATE_RUNNING


@pytest.fixture(autouse=True)
def three(workflows: ScriptedWorkflows) -> None:
    for number in range(3):
        run = workflow(RUNNING if number == 2 else workflow_pb2.WORKFLOW_STATE_SUCCEEDED, phase="yard", turns=7)
        run.workflow_id = f"wf-{number}"
        workflows.runs.append(run)


async def test_list_over_all_pages(workflows: ScriptedWorkflows, agentmem: Command) -> None:
    workflows.runs[1].name = "[bold]x\x1b[2J"
    listed = await agentmem("workflows")
    assert listed.exit_code == 0
    assert (await agentmem("workflows", "list")).output == listed.output
    header, *rows = (line.split() for line in listed.output.splitlines())
    assert header == ["id", "workflow", "state", "turns", "last", "turn"]
    assert [row[:5] for row in rows] == [
        ["wf-0", "prison", "succeeded", "7", "never"],
        ["wf-1", "[bold]x\\x1b[2J", "succeeded", "7", "never"],
        ["wf-2", "prison", "running", "7", "never"],
    ]
    told = json.loads((await agentmem("workflows", "--json")).output)
    assert [(one["workflow_id"], one["state"]) for one in told] == [
        ("wf-0", "succeeded"),
        ("wf-1", "succeeded"),
        ("wf-2", "running"),
    ]
    workflows.runs.clear()
    assert (await agentmem("workflows")).output == "no runs yet; `agentmem run FILE` starts one\n"
    assert (await agentmem("workflows", "--json")).output == "[]\n"


async def test_show(workflows: ScriptedWorkflows, agentmem: Command) -> None:
    workflows.runs[1].error = "it is \x1b[2J full"
    shown = await agentmem("workflows", "show", "wf-1")
    assert shown.exit_code == 0
    assert "it is \\x1b[2J full" in shown.output
    assert "agents        name warden, key.agent_id wf-1/warden, key.model_id demo, persists yes" in shown.output
    told = json.loads((await agentmem("workflows", "show", "wf-2", "--json")).output)
    assert (told["workflow_id"], told["state"], told["turns"]) == ("wf-2", "running", 7)
    assert told["agents"][0] == {
        "name": "warden",
        "key": {"agent_id": "wf-1/warden", "model_id": "demo"},
        "persists": True,
    }
    missing = await agentmem("workflows", "show", "wf-9")
    assert (missing.exit_code, missing.output) == (1, "Error: workflow 'wf-9' does not exist\n")


async def test_cancel(workflows: ScriptedWorkflows, agentmem: Command) -> None:
    assert (await agentmem("workflows", "cancel", "wf-2")).output == "cancelled wf-2 after 7 turns\n"
    assert (await agentmem("workflows", "cancel", "wf-0")).output == "wf-0 had ended: succeeded\n"
    told = json.loads((await agentmem("workflows", "cancel", "wf-2", "--json")).output)
    assert (told["workflow_id"], told["state"]) == ("wf-2", "cancelled")


async def test_delete(workflows: ScriptedWorkflows, agentmem: Command) -> None:
    refused = await agentmem("workflows", "delete", "wf-2", "--yes")
    assert (refused.exit_code, refused.output) == (1, "Error: the run is going on; cancel it first\n")
    assert (await agentmem("workflows", "delete", "wf-1", "--yes")).output == "deleted the record of wf-1\n"
    told = await agentmem("workflows", "delete", "wf-0", "--json")
    assert json.loads(told.output) == {"workflow_id": "wf-0", "deleted": True}
    assert [run.workflow_id for run in workflows.runs] == ["wf-2"]


async def test_a_terminal_is_asked_before(
    workflows: ScriptedWorkflows, agentmem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    asked = await agentmem("workflows", "delete", "wf-1", say="n\n")
    assert asked.exit_code == 1
    assert "Delete the record of wf-1 for good?" in asked.output
    assert len(workflows.runs) == 3
    assert (await agentmem("workflows", "delete", "wf-1", say="y\n")).exit_code == 0
    assert len(workflows.runs) == 2


def test_the_table_fits() -> None:
    run = workflow_pb2.Workflow(workflow_id="b6a5a79c-8429-4462-9999-0641f50b3e98", name="code-review-of-the-team")
    run.turns, run.state = 12_345, workflow_pb2.WORKFLOW_STATE_CANCELLED
    run.update_time.FromDatetime(LONG_AGO)
    assert_fits(workflows_table([run], NOW))
