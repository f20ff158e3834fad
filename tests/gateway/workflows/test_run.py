"""A run over a real channel to a scripted worker: what it asks for, what it records, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentmem.channels import connect
from agentmem.errors import Aborted, FailedPrecondition, ResourceExhausted, Unauthenticated, Unavailable
from agentmem.v1 import agent_pb2, inference_pb2, workflow_pb2
from gateway.upstream import ChannelWorker
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import LoggedEvent, Totals
from gateway.workflows.records import StoredRun
from gateway.workflows.run import Run, agent_keys
from gateway.workflows.worker import PatientWorker
from tests.gateway.running import eventually
from tests.gateway.scripted import ScriptedWorker, delta, finished, for_ever, script, started
from tests.gateway.workflows.files import definition

State = workflow_pb2.WorkflowState
TALK = definition(
    {"agents": ["a", "b"], "rounds": 2, "prompts": "speak"},
    agents={"a": {"system": "You are a."}, "c": {"persist": True}},
)


def record(workflow: Definition) -> StoredRun:
    run = workflow_pb2.Workflow(workflow_id="wf-1", state=State.WORKFLOW_STATE_RUNNING)
    run.agents.extend(agent_keys(workflow, "n", "wf-1", "demo"))
    return StoredRun(run, "", {})


@asynccontextmanager
async def running(
    worker: ScriptedWorker, run: StoredRun, workflow: Definition = TALK, **options: Any
) -> AsyncIterator[Run]:
    async def write(events: Sequence[LoggedEvent]) -> None:
        options.setdefault("written", []).extend(events)

    async with connect(worker.target) as channel:
        calls = PatientWorker(ChannelWorker(channel), options.get("patience", 5.0))
        check = options.get("check", lambda: None)
        yield Run(run, workflow, calls, write, check, asyncio.Semaphore(8))


def read_again(run: StoredRun, written: list[LoggedEvent]) -> StoredRun:
    """A run as the store has it when it is resumed."""
    again = workflow_pb2.Workflow()
    again.CopyFrom(run.workflow)
    return StoredRun(again, "", {}, events=list(written))


async def told(worker: ScriptedWorker, run: StoredRun, workflow: Definition = TALK, **options: Any) -> list[str]:
    """The kinds of all events of a run, executed to its end."""
    async with running(worker, run, workflow, **options) as performed:
        executing = asyncio.create_task(performed.execute())
        kinds = [str(event.WhichOneof("event")) async for event in performed.log.read(0)]
        await executing
        return kinds


def asked(worker: ScriptedWorker, kind: type = inference_pb2.GenerateRequest) -> list[Any]:
    return [request for request in worker.requests if isinstance(request, kind)]


def texts(worker: ScriptedWorker) -> list[tuple[str, str]]:
    return [(r.request_id, r.append.messages.messages[0].content) for r in worker.generated]


async def test_what_a_run_asks_for(worker: ScriptedWorker) -> None:
    run = record(TALK)
    kinds = await told(worker, run)
    assert texts(worker) == [
        ("wf-1/a/2", "speak"),
        ("wf-1/b/1", "a: Hello 🌍\nspeak"),
        ("wf-1/a/3", "b: Hello 🌍\nspeak"),
        ("wf-1/b/2", "a: Hello 🌍\nspeak"),
    ]
    heard = asked(worker, inference_pb2.PrefillRequest)
    assert [(r.request_id, r.append.messages.messages[0].role, r.if_version) for r in heard] == [
        ("wf-1/a/1", "system", 0),
        ("wf-1/a/4", "user", 3),
    ]
    assert [request.if_version for request in worker.generated] == [3, 0, 3, 3], "as the worker said, or none yet"
    keys = {(r.key.namespace, r.key.agent_id, r.key.model_id) for r in [*worker.generated, *heard]}
    assert keys == {("n", "wf-1.a", "demo"), ("n", "wf-1.b", "demo")}
    assert all(request.expiry.delete_after.seconds for request in [*worker.generated, *heard])
    deleted = [request.key.agent_id for request in asked(worker, agent_pb2.DeleteAgentRequest)]
    assert deleted == ["wf-1.a", "wf-1.b"], "c persists"
    assert kinds.count("agent_spoke") == kinds.count("agent_speaking") == 4
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert run.workflow.state == State.WORKFLOW_STATE_SUCCEEDED
    assert run.workflow.turns == run.workflow.totals.turns == 4
    assert run.workflow.totals.listenings == 2


async def test_it_looks_ahead(worker: ScriptedWorker) -> None:
    def fetched() -> list[str]:
        return [request.key.agent_id for request in asked(worker, agent_pb2.PrefetchAgentRequest)]

    async def slowly(request: Any) -> AsyncIterator[Any]:
        turn = len(worker.generated)
        yield started()
        yield delta("word")
        await eventually(lambda: len(fetched()) >= min(turn, 3))  # after the last of the four turns nobody speaks
        yield finished()

    worker.script = slowly
    await told(worker, record(TALK))
    hints = [
        {hint.key.agent_id.removeprefix("wf-1."): hint.steps if hint.HasField("steps") else None for hint in r.hints}
        for r in asked(worker, agent_pb2.SetTurnHintsRequest)
    ]
    assert {"a": 1, "b": 2, "c": None} in hints
    assert {"a": 2, "b": 1, "c": None} in hints
    assert {"a": None, "b": None, "c": None} in hints
    assert fetched() == ["wf-1.b", "wf-1.a", "wf-1.b"]


async def test_a_run_that_failed_goes_on_where_it_was(worker: ScriptedWorker) -> None:
    run, written = record(TALK), list[LoggedEvent]()
    said = [(started(), delta(f"said {number}"), finished()) for number in range(5)]
    worker.script = script(*said[1:3], [FailedPrecondition("the context is full")], said[4])
    kinds = await told(worker, run, written=written)
    assert kinds[-1] == "finished"
    assert (run.workflow.state, run.workflow.error) == (State.WORKFLOW_STATE_FAILED, "the context is full")
    assert asked(worker, agent_pb2.DeleteAgentRequest) == [], "whoever resumes it needs them"
    again = read_again(run, written)
    worker.requests.clear()
    kinds = await told(worker, again, written=written)
    assert [request.if_version for request in worker.generated] == [3, 3], "they go on from what the log has"
    first = {hint.key.agent_id: hint.steps for hint in asked(worker, agent_pb2.SetTurnHintsRequest)[0].hints}
    assert first["wf-1.b"] == 1, "who looks ahead does so from where the run goes on"
    assert texts(worker) == [("wf-1/a/3", "b: said 2\nspeak"), ("wf-1/b/2", "a: said 4\nspeak")]
    assert [logged.key for logged in written].count("finished") == 1
    assert again.workflow.state == State.WORKFLOW_STATE_SUCCEEDED
    assert (again.workflow.error, again.workflow.turns) == ("", 4)
    assert again.workflow.totals == Totals(logged.event for logged in written).sums
    assert kinds.count("agent_spoke") == 4


@pytest.mark.parametrize("outage", [Unavailable("away", 0.01), ResourceExhausted("no room", 0.01)])
async def test_a_turn_outlasts_an_outage_under_its_name(worker: ScriptedWorker, outage: Exception) -> None:
    away, answers = (started(), delta("half a"), outage), (started(), delta("word"), finished())
    worker.script = script(*(away, answers) * 4)
    run, written = record(TALK), list[LoggedEvent]()
    await told(worker, run, written=written)
    assert run.workflow.state == State.WORKFLOW_STATE_SUCCEEDED
    logged = written
    assert [request_id for request_id, _ in texts(worker)] == [
        request_id for request_id in ("wf-1/a/2", "wf-1/b/1", "wf-1/a/3", "wf-1/b/2") for _ in range(2)
    ]
    spoken = [each.event.agent_spoke.text for each in logged if each.event.HasField("agent_spoke")]
    assert spoken == ["word"] * 4


async def test_patience_ends(worker: ScriptedWorker) -> None:
    worker.error = Unavailable("away", 0.01)
    run = record(TALK)
    await told(worker, run, patience=0.1)
    assert (run.workflow.state, run.workflow.error) == (State.WORKFLOW_STATE_FAILED, "away")


async def test_only_an_agent_that_persists_may_be_known_already(
    worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(request: Any, context: Any) -> None:
        if isinstance(request, inference_pb2.PrefillRequest):
            raise Aborted("the agent is at version 3, not 0")

    monkeypatch.setattr(worker, "note", known)
    for persist, state in ((False, State.WORKFLOW_STATE_FAILED), (True, State.WORKFLOW_STATE_SUCCEEDED)):
        introduced = definition({"agents": ["a"]}, agents={"a": {"system": "You are a.", "persist": persist}})
        run = record(introduced)
        await told(worker, run, introduced)
        assert run.workflow.state == state


async def test_a_turn_that_another_was_faster_than_is_done_again(worker: ScriptedWorker) -> None:
    """As where two nodes compute turns of an agent at once: of one that persists, others may be the faster."""

    aborted = started(), Aborted("the agent has changed meanwhile; send it again")
    for persist in (False, True):
        worker.requests.clear()
        worker.script = script(aborted, (started(), delta("word"), finished()))
        talk = definition({"agents": ["a"]}, agents={"a": {"persist": persist}})
        run = record(talk)
        await told(worker, run, talk)
        assert (run.workflow.state, run.workflow.turns) == (State.WORKFLOW_STATE_SUCCEEDED, 1), run.workflow.error
        assert len({request.request_id for request in worker.generated}) == 1 < len(worker.generated)


async def test_whoever_may_not_go_on_does_not(worker: ScriptedWorker) -> None:
    def check() -> None:
        if worker.generated:
            raise Unauthenticated("revoked")

    run = record(TALK)
    await told(worker, run, check=check)
    assert (run.workflow.state, run.workflow.error) == (State.WORKFLOW_STATE_FAILED, "revoked")
    assert len(worker.generated) == 1


async def test_interrupted_and_cancelled(worker: ScriptedWorker) -> None:
    worker.script = script((started(), for_ever))
    for cancelled in (False, True):
        run = record(TALK)
        worker.cancelled.clear()
        async with running(worker, run) as performed:
            executing = asyncio.create_task(performed.execute())
            events = performed.log.read(0)
            async for event in events:
                if event.HasField("agent_speaking"):
                    break
            performed.cancelled = cancelled
            executing.cancel()
            if cancelled:
                await executing
                assert [event.WhichOneof("event") async for event in events] == ["finished"]
            else:
                with pytest.raises(asyncio.CancelledError):
                    await executing
                with pytest.raises(Unavailable):
                    await anext(events)
            await asyncio.wait_for(worker.cancelled.wait(), 20)
        assert run.workflow.state == (State.WORKFLOW_STATE_CANCELLED if cancelled else State.WORKFLOW_STATE_RUNNING)


async def test_an_internal_fault_is_told_as_an_incident(
    worker: ScriptedWorker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr("gateway.workflows.task_runner.generate_request", broken)
    run = record(TALK)
    await told(worker, run)
    assert "incident" in run.workflow.error
    assert "secret" not in run.workflow.error
    assert "ZeroDivisionError" in caplog.text


def test_memories_of_agents() -> None:
    agents = {"a": {"persist": True, "id": "ada"}, "b": {"persist": True}, "c": {"model": "other"}}
    made = agent_keys(definition({"agents": ["a"]}, agents=agents), "n", "wf-1", "demo")
    assert [(a.name, a.key.agent_id, a.key.model_id, a.persists) for a in made] == [
        ("a", "ada", "demo", True),
        ("b", "b", "demo", True),
        ("c", "wf-1.c", "other", False),
    ]


async def test_a_run_of_too_many_tasks_fails(worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.workflows.task_runner.MAX_TASKS", 3)
    run = record(TALK)
    await told(worker, run)
    assert (run.workflow.state, run.workflow.turns) == (State.WORKFLOW_STATE_FAILED, 2)
    assert "a run has at most 3 turns, listenings and notes" in run.workflow.error
