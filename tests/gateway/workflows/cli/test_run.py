"""`agentmem run`, on a scripted gateway, and how its client follows a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentmem import AsyncClient, errors
from agentmem.v1 import workflow_pb2
from agentmem.words import short_name
from gateway.cli.main import main
from gateway.workflows.definition.parser import MAX_BYTES
from tests.gateway.conftest import Command
from tests.gateway.running import eventually
from tests.gateway.scripted import for_ever, script
from tests.gateway.workflows.cli.conftest import DEFINITION
from tests.gateway.workflows.cli.events import ID, RUN, Event, workflow
from tests.gateway.workflows.cli.scripted import ScriptedWorkflows, after
from tests.gateway.workflows.cli.test_view import TRANSCRIPT, stripped


async def test_a_run(workflows: ScriptedWorkflows, agentmem: Command, file: Path) -> None:
    said = await agentmem("run", str(file), "--set", "boat=green", "--set", "empty=", "--set", "equation=a=b")
    assert (said.exit_code, said.stderr) == (0, "")
    assert stripped(said.stdout) == TRANSCRIPT
    (request,) = workflows.runs_asked
    assert request.definition_yaml == DEFINITION
    assert dict(request.variables) == {"boat": "green", "empty": "", "equation": "a=b"}
    assert request.request_id
    await agentmem("run", str(file))
    assert workflows.runs_asked[1].request_id != request.request_id
    await agentmem("run", str(file), "--request-id", "mine")
    assert workflows.runs_asked[2].request_id == "mine"


async def test_json_has_a_line_for_each_event(workflows: ScriptedWorkflows, agentmem: Command, file: Path) -> None:
    said = await agentmem("run", str(file), "--json")
    told = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(one["sequence"], [*one][-1]) for one in told] == [(e.sequence, e.WhichOneof("event")) for e in RUN]
    assert told[-1]["finished"]["workflow"]["state"] == "succeeded"


async def test_resume(workflows: ScriptedWorkflows, agentmem: Command) -> None:
    said = await agentmem("run", "--resume", ID)
    assert said.exit_code == 0
    assert stripped(said.stdout).startswith(TRANSCRIPT)
    assert workflows.runs_asked == [workflow_pb2.RunWorkflowRequest(resume_workflow_id=ID)]


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_lost_connection_is_made_again_and_nothing_is_told_twice(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, as_json: bool
) -> None:
    """Cut off in mid-turn, told nothing, told what is known, ended as if it were over, and cut off once more."""

    def away(why: str) -> errors.Unavailable:
        return errors.Unavailable(why, retry_after=0.01)

    workflows.script = script(
        [*RUN[:7], away("the gateway is draining")],
        [away("the gateway is starting")],
        [*RUN[:5], away("the gateway is starting")],
        after(RUN[:14], 3),
        [away("the store is away")],
        after(RUN, 7),
    )
    said = await agentmem("run", str(file), *["--json"] * as_json)
    assert said.exit_code == 0
    assert [request.after_sequence for request in workflows.runs_asked] == [0, 3, 3, 3, 7, 7]
    assert len({request.request_id for request in workflows.runs_asked}) == 1
    assert said.stderr.splitlines() == [
        "… waiting: the gateway is draining; the run goes on where it was",
        "… waiting: the connection to the gateway was lost; the run goes on where it was",
    ]
    if as_json:
        log = [json.loads(line) for line in said.stdout.splitlines()]
        numbers = [one["sequence"] for one in log if one.keys().isdisjoint(("agent_speaking", "agent_delta"))]
        assert numbers == list(range(1, RUN[-1].sequence + 1))
    else:
        assert stripped(said.stdout).startswith(TRANSCRIPT)


async def test_mistakes_have_file_and_line(workflows: ScriptedWorkflows, agentmem: Command, file: Path) -> None:
    others = [
        errors.Violation("phases[0].rounds", "line 5, column 3: must be 1 or more"),
        errors.Violation("variables.boat", "is not in the file"),
    ]
    first = "line 4, column 28: 'danny' is no agent: of \x1b[2J none"
    workflows.script = script([errors.InvalidArgument("phases[0].agents[1]", first, others)])
    said = await agentmem("run", str(file))
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.splitlines() == [
        f"{file}:4:28: phases[0].agents[1]: 'danny' is no agent: of \\x1b[2J none",
        f"{file}:5:3: phases[0].rounds: must be 1 or more",
        "Error: variables.boat: is not in the file",
    ]


def test_check_needs_no_gateway(file: Path) -> None:
    checked = CliRunner().invoke(main, ["run", str(file), "--check", "--gateway", "127.0.0.1:1"])
    assert (checked.exit_code, checked.output) == (0, f"{file}: prison can be run\n")
    file.write_text(
        DEFINITION.replace("[marco, danny]", "[marco, eve]") + "  - {name: late, agents: [eve], rounds: 0}\n"
    )
    checked = CliRunner().invoke(main, ["run", str(file), "--check"])
    assert checked.exit_code == 2
    assert checked.stderr.startswith(f"{file}:5:")
    file.write_text(DEFINITION.replace("[marco, danny]", "[marco, eve]"))
    checked = CliRunner().invoke(main, ["run", str(file), "--check", "--set", "boat=green"])
    assert checked.exit_code == 2
    lines = checked.stderr.splitlines()
    assert any(line.startswith(f"{file}:4:") and "eve" in line for line in lines)
    assert any(line.startswith("Error: variables") and "boat" in line for line in lines)


def test_schema_needs_no_gateway() -> None:
    written = CliRunner().invoke(main, ["run", "--schema"])
    assert written.exit_code == 0
    assert set(json.loads(written.stdout)["required"]) == {"workflow", "agents", "phases"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a workflow file, or a run with --resume ID"),
        (["FILE", "--resume", "x"], "name a workflow file, or a run with --resume ID"),
        (["--resume", ""], "'--resume' must not be empty"),
        (["--resume", "x", "--set", "a=b"], "--set, --request-id and --check are for a file"),
        (["--resume", "x", "--check"], "--set, --request-id and --check are for a file"),
        (["FILE", "--set", "boat"], "--set boat: write NAME=VALUE"),
        (["FILE", "--set", "=x"], "--set =x: write NAME=VALUE"),
        (["FILE", "--set", "a=b", "--set", "a=c"], "--set a is given more than once"),
        (["FILE", "--request-id", ""], "'--request-id' must not be empty"),
        (["none.yaml"], "none.yaml cannot be read: No such file"),
        (["."], ". is a directory"),
    ],
)
async def test_what_there_is_to_mend_is_said_before_anything_starts(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, arguments: list[str], told: str
) -> None:
    said = await agentmem("run", *(str(file) if argument == "FILE" else argument for argument in arguments))
    assert said.exit_code == 2
    assert said.output.startswith(f"Error: {told}")
    assert said.output.count("\n") == 1
    assert workflows.requests == []


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"x" * (MAX_BYTES + 1), "FILE is larger than 1,048,576 bytes"),
        (b"workflow: a\nagents: \xff", "FILE:2: is not UTF-8"),
    ],
)
def test_files_that_are_none(file: Path, data: bytes, told: str) -> None:
    file.write_bytes(data)
    said = CliRunner().invoke(main, ["run", str(file)])
    assert said.exit_code == 2
    assert said.output.startswith(f"Error: {told.replace('FILE', str(file))}")


FAILED, CANCELLED = workflow_pb2.WORKFLOW_STATE_FAILED, workflow_pb2.WORKFLOW_STATE_CANCELLED


@pytest.mark.parametrize(
    ("state", "fields", "told"),
    [
        (
            FAILED,
            {"phase": "yard", "error": "the pool is full\n"},
            "Error: run wf-1 failed in phase yard: the pool is full\\n; "
            "`agentmem run --resume wf-1` tries again at the last finished turn",
        ),
        (CANCELLED, {"phase": "yard"}, "Error: run wf-1 was cancelled in phase yard"),
    ],
)
async def test_a_run_that_does_not_succeed(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, state: Any, fields: dict[str, Any], told: str
) -> None:
    last = Event(sequence=RUN[-2].sequence)  # A failure is not in the log.
    last.finished.workflow.CopyFrom(workflow(state, **fields))
    workflows.script = script([*RUN[:-1], last])
    said = await agentmem("run", str(file))
    assert (said.exit_code, said.stderr) == (1, f"{told}\n")
    transcript, _, ended_line = stripped(said.stdout).rpartition("\n\n")
    assert TRANSCRIPT.startswith(transcript)
    assert ended_line.startswith(short_name(workflow_pb2.WorkflowState.DESCRIPTOR, state))


@pytest.mark.parametrize("events", [0, 7])
async def test_a_failure_that_does_not_pass(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, events: int
) -> None:
    full = errors.ResourceExhausted("4 runs are going on; wait for one, or cancel it")
    workflows.script = script([*RUN[:events], full])
    said = await agentmem("run", str(file))
    told = "Error: 4 runs are going on; wait for one, or cancel it"
    if events:
        told += "; the run goes on: `agentmem run --resume wf-1` shows it, `agentmem workflows cancel wf-1` ends it"
    assert (said.exit_code, said.stderr) == (1, f"{told}\n")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("workflow", "workflow 'wf-9' does not exist; `agentmem workflows` lists the runs"),
        ("model", "model 'wf-9' does not exist"),
    ],
)
async def test_what_is_not_there(workflows: ScriptedWorkflows, agentmem: Command, kind: str, told: str) -> None:
    workflows.script = script([errors.NotFound(kind, "wf-9")])
    said = await agentmem("run", "--resume", "wf-9")
    assert (said.exit_code, said.stderr) == (1, f"Error: {told}\n")


INTERRUPTIBLE = """
import signal
from gateway.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
main()
"""


@pytest.mark.parametrize("begun", [True, False])
async def test_ctrl_c_leaves_the_run_going(workflows: ScriptedWorkflows, file: Path, begun: bool) -> None:
    workflows.script = script([*RUN[: 7 * begun], for_ever])
    command = [sys.executable, "-c", INTERRUPTIBLE, "run", str(file), "--request-id", "mine"]
    child = await asyncio.create_subprocess_exec(
        *command, "--gateway", workflows.address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        await eventually(lambda: bool(workflows.runs_asked), within=60)
        assert child.stdout is not None
        if begun:
            await child.stdout.readuntil(b"phase yard")
        os.kill(child.pid, signal.SIGINT)
        _, stderr = await asyncio.wait_for(child.communicate(), 60)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    told = (
        "the run goes on: `agentmem run --resume wf-1` shows it, `agentmem workflows cancel wf-1` ends it"
        if begun
        else "the run may have begun: `agentmem workflows` lists runs, and "
        f"`agentmem run {file} --request-id mine` shows this one"
    )
    assert (child.returncode, stderr.decode()) == (130, f"\n{told}\n")
    assert not any(isinstance(request, workflow_pb2.CancelWorkflowRequest) for request in workflows.requests)


PATIENCE = 1.5
"""Seconds. An outage has two attempts, each a tenth of a second after the one before, or a little more."""


async def followed(workflows: ScriptedWorkflows, patience: float = 60) -> tuple[list[Event], list[str]]:
    outages = list[str]()
    async with AsyncClient(workflows.address, patience=patience, on_outage=outages.append) as client:
        request = workflow_pb2.RunWorkflowRequest(resume_workflow_id="wf-1")
        return [event async for event in client.workflows.raw_events(request) if event is not None], outages


async def test_patience_begins_anew_with_what_is_new(workflows: ScriptedWorkflows) -> None:
    """One event each time: all outages together are longer than the patience, each of them is not."""

    async def one_at_a_time(request: Any) -> AsyncIterator[Event]:
        if len(workflows.runs_asked) > 1 and len(workflows.runs_asked) % 2:
            raise errors.Unavailable("restarting", retry_after=0.1)
        yield after(RUN, request.after_sequence)[0]
        raise errors.Unavailable("restarting", retry_after=0.1)

    workflows.script = one_at_a_time
    began = time.monotonic()
    events, outages = await followed(workflows, PATIENCE)
    assert time.monotonic() - began > PATIENCE
    assert events == after(RUN, 0)
    assert set(outages) == {"restarting"}


async def test_a_gateway_that_never_tells_anything_new_is_given_up(workflows: ScriptedWorkflows) -> None:
    workflows.script = script([*RUN[:3], errors.Unavailable("restarting", retry_after=0.1)])
    with pytest.raises(errors.Unavailable, match="restarting"):
        await followed(workflows, 0.3)
    assert len(workflows.runs_asked) > 1


async def test_what_comes_after_the_end_does_not_matter(workflows: ScriptedWorkflows) -> None:
    workflows.script = script([*RUN, errors.Unavailable("draining")])
    assert await followed(workflows) == (RUN, [])
    assert len(workflows.runs_asked) == 1
