"""Runs that are begun, joined, cancelled and stopped in the wrong moments. Records are a dictionary, slow on demand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from agentmem.channels import connect
from agentmem.errors import (
    AgentmemError,
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from agentmem.v1 import agent_pb2, workflow_pb2
from agentmem.words import short_name
from gateway.edge.callers import Caller, Everyone
from gateway.upstream import ChannelWorker
from gateway.workflows.definition.parser import load
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.live import LiveRuns, WorkflowMetrics
from gateway.workflows.records import Records, RunKey, StoredRun, TakenOver
from gateway.workflows.run import agent_keys, check_memories
from gateway.workflows.runs import Runs
from gateway.workflows.worker import PatientWorker
from tests.gateway.running import eventually
from tests.gateway.scripted import ScriptedWorker, delta, for_ever, script, started
from tests.gateway.workflows.files import definition

State = workflow_pb2.WorkflowState
WHO = Caller("n")
FILE = """
workflow: talk
agents: {a: {system: You are a.}, b: {}}
phases: [{name: only, agents: [a, b], prompts: speak}]
"""


ENDLESS = script((started(), delta("…"), for_ever))


class Kept:
    """A store's runs. Writers wait for `gate`; `refuses` is the error that the next ones get."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], StoredRun] = {}
        self.there: set[str] = set()
        """The gateways that attend to their runs."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.writers = 0
        """Count of writers at or past the gate."""
        self.refuses: AgentmemError | None = None
        self.damaged = False
        self.compares = True
        """Off: it takes every write, whatever the record's version is. A mistake."""


class RecordsIn(Records):
    """The records of one gateway, which attends to its runs from the beginning."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.holder = uuid.uuid4().hex
        self.read: list[tuple[bool, bool]] = []
        """For each record: is it read with all events, and with its payload?"""
        kept.there.add(self.holder)

    async def create(self, run: StoredRun) -> None:
        try:
            await self.append(run, ())
        except TakenOver as error:
            raise AlreadyExists("it exists") from error

    async def append(self, run: StoredRun, events: Sequence[LoggedEvent]) -> None:
        kept = self.kept
        asked = replace(run, workflow=copied(run.workflow))
        await asyncio.sleep(0)
        kept.writers += 1
        await kept.gate.wait()
        if kept.refuses is not None:
            raise kept.refuses
        known = kept.records.get(run.key)
        if kept.compares and (known.version if known else 0) != asked.version:
            raise TakenOver
        run.version += 1
        run.stored_events += len(events)
        stored = [*(known.events if known else ()), *events]
        going_on = asked.workflow.state == State.WORKFLOW_STATE_RUNNING
        numbers: dict[str, Any] = {"version": run.version, "stored_events": run.stored_events}
        kept.records[run.key] = replace(asked, events=stored, holder=self.holder if going_on else "", **numbers)

    async def get(self, namespace: str, workflow_id: str, after: int = 0, *, payload: bool = True) -> StoredRun | None:
        self.read.append((after == 0, payload))
        await asyncio.sleep(0)
        if self.kept.damaged:
            raise DataLoss("it is damaged")
        known = self.kept.records.get((namespace, workflow_id))
        return known and self._read(known, after, payload=payload)

    async def page(self, namespace: str, size: int, token: str = "") -> tuple[list[StoredRun], str]:
        return [self._read(run, run.stored_events) for run in self.kept.records.values()], ""

    async def attend(self, *, leaving: bool = False) -> tuple[set[RunKey], list[RunKey]]:
        if self.kept.refuses is not None:
            raise self.kept.refuses
        self.kept.there.add(self.holder)
        if leaving:
            self.kept.there.remove(self.holder)
        holders = {key: run.holder for key, run in self.kept.records.items() if run.holder}
        held = {key for key, holder in holders.items() if holder == self.holder}
        return held, [key for key, holder in holders.items() if holder not in self.kept.there]

    async def delete(self, namespace: str, workflow_id: str, version: int) -> None:
        run = self.kept.records.pop((namespace, workflow_id))
        assert version in (run.version, 0 if self.kept.damaged else run.version)

    def _read(self, run: StoredRun, after: int, *, payload: bool = True) -> StoredRun:
        holder = run.holder if run.holder in self.kept.there else ""
        workflow = copied(run.workflow)
        if not payload:
            workflow.ClearField("agents")
        return replace(run, workflow=workflow, events=run.events[after:], holder=holder)


def copied(workflow: workflow_pb2.Workflow) -> workflow_pb2.Workflow:
    made = workflow_pb2.Workflow()
    made.CopyFrom(workflow)
    return made


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def runs(worker: ScriptedWorker, kept: Kept) -> AsyncIterator[Runs]:
    async with connect(worker.target) as channel:
        made = gateway(kept, channel)
        yield made
        await made.live.stop(5)


def gateway(kept: Kept, channel: grpc.aio.Channel) -> Runs:
    worker = PatientWorker(ChannelWorker(channel))
    return Runs(LiveRuns(RecordsIn(kept), worker, Everyone("n"), WorkflowMetrics(None), most=2))


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def begun(runs: Runs, request_id: str = "r", **file: str) -> Any:
    return await runs.begin(WHO, request_id, file.get("text", FILE), {}, 0)


async def the_run(runs: Runs) -> workflow_pb2.Workflow:
    (run,), _ = await runs.page("n", 10, "")
    return run


async def test_no_more_at_once_than_may_be_even_if_they_come_together(runs: Runs, worker: ScriptedWorker) -> None:
    worker.script = ENDLESS
    outcomes = await asyncio.gather(*(begun(runs, f"r{n}") for n in range(10)), return_exceptions=True)
    assert sum(isinstance(each, ResourceExhausted) for each in outcomes) == 8
    assert len(runs.live.by_key) == 2


async def test_nothing_begins_after_the_end(runs: Runs, worker: ScriptedWorker, kept: Kept) -> None:
    kept.gate.clear()
    beginning = asyncio.create_task(begun(runs))
    await eventually(lambda: kept.writers == 1)
    await runs.live.stop(5)
    kept.gate.set()
    with pytest.raises(AgentmemError):
        await beginning
    assert not runs.live.by_key
    assert worker.generated == []


async def test_a_client_that_leaves_at_the_beginning_leaves_a_run(
    runs: Runs, worker: ScriptedWorker, kept: Kept
) -> None:
    worker.script = ENDLESS
    kept.gate.clear()
    beginning = asyncio.create_task(begun(runs))
    await eventually(lambda: kept.writers == 1)
    beginning.cancel()
    kept.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert (await the_run(runs)).state == State.WORKFLOW_STATE_RUNNING


async def test_cancelled_before_its_first_step(runs: Runs, worker: ScriptedWorker, kept: Kept) -> None:
    worker.script = ENDLESS
    await begun(runs)
    ((_, workflow_id),) = runs.live.by_key
    await runs.live.stop(5)
    runs.live._closed = False
    run = await runs._found(("n", workflow_id))
    events = runs.live.begin(WHO, load(FILE, {}), run).log.read(1)
    cancelled = await runs.cancel("n", workflow_id)
    assert cancelled.state == State.WORKFLOW_STATE_CANCELLED
    assert not runs.live.by_key
    with pytest.raises(AgentmemError):
        await all_of(events)
    assert (await all_of(await begun(runs)))[-1].finished.workflow.state == State.WORKFLOW_STATE_CANCELLED
    past = await all_of(await runs.watch(WHO, workflow_id, 0))
    assert past == await all_of(await runs.resume(WHO, workflow_id, 0))
    assert past[1:] == await all_of(await runs.watch(WHO, workflow_id, 1)) != []
    await runs.delete("n", workflow_id)
    with pytest.raises(NotFound):
        await runs.get("n", workflow_id)


async def test_who_joins_while_it_ends_gets_all_of_it(runs: Runs) -> None:
    first = await begun(runs)
    for _ in range(200):
        joined = await all_of(await begun(runs))
        if joined[-1].HasField("finished") and not runs.live.by_key:
            break
    assert [e for e in await all_of(first) if e.sequence] == [] or joined[-1].finished.workflow.turns == 2
    assert (await the_run(runs)).state == State.WORKFLOW_STATE_SUCCEEDED


async def test_a_cancel_that_comes_too_late_changes_nothing(runs: Runs, worker: ScriptedWorker, kept: Kept) -> None:
    """The end is being written: it stays as it is, and its agents are deleted."""
    events = await begun(runs)
    ((_, workflow_id),) = runs.live.by_key
    while runs.live.by_key[("n", workflow_id)].workflow.state != State.WORKFLOW_STATE_SUCCEEDED:
        await asyncio.sleep(0)
    assert (await runs.get("n", workflow_id)).state == State.WORKFLOW_STATE_RUNNING, "until its record says so"
    assert (await runs.cancel("n", workflow_id)).state == State.WORKFLOW_STATE_SUCCEEDED
    assert (await all_of(events))[-1].finished.workflow.state == State.WORKFLOW_STATE_SUCCEEDED
    assert [request for request in worker.requests if isinstance(request, agent_pb2.DeleteAgentRequest)]


@pytest.mark.parametrize("refusal", [ResourceExhausted("the quota is full", 60), FailedPrecondition("it is full")])
async def test_what_cannot_be_recorded_is_told(runs: Runs, kept: Kept, refusal: AgentmemError) -> None:
    events = await begun(runs)
    kept.refuses = refusal
    told = await all_of(events)
    assert told[-1].finished.workflow.state == State.WORKFLOW_STATE_FAILED
    assert told[-1].finished.workflow.error == refusal.message
    kept.refuses = None
    assert (await all_of(await begun(runs)))[-1].finished.workflow.state == State.WORKFLOW_STATE_SUCCEEDED


async def test_two_agents_have_not_one_memory(runs: Runs, kept: Kept) -> None:
    """The default model, which `a` has, is demo."""
    agents = "{a: {persist: true, id: x}, b: {persist: true, id: x, model: MODEL}}"
    text = f"{{workflow: w, agents: {agents}, phases: [{{name: p, agents: [a, b]}}]}}"
    with pytest.raises(FailedPrecondition, match="a and b would have one memory"):
        await begun(runs, text=text.replace("MODEL", "demo"))
    assert kept.records == {}
    assert (await all_of(await begun(runs, text=text.replace("MODEL", "org/large"))))[-1].finished.workflow.turns == 2


async def test_what_is_damaged_can_be_deleted(runs: Runs, kept: Kept) -> None:
    await all_of(await begun(runs))
    workflow_id = (await the_run(runs)).workflow_id
    while runs.live.by_key:
        await asyncio.sleep(0)
    kept.damaged = True
    with pytest.raises(DataLoss):
        await runs.get("n", workflow_id)
    await runs.delete("n", workflow_id)
    assert kept.records == {}


async def meeting(first: Runs, second: Runs, kept: Kept, *texts: str) -> list[Any]:
    """One request at two gateways, neither of which finds a record; what each answers."""
    kept.gate.clear()
    pairs = zip((first, second), texts or (FILE, FILE), strict=True)
    asked = [asyncio.create_task(begun(runs, text=text)) for runs, text in pairs]
    await eventually(lambda: kept.writers == 2)
    kept.gate.set()
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_one_request_at_two_gateways_is_one_run(runs: Runs, worker: ScriptedWorker, kept: Kept) -> None:
    """The later gateway follows the other's run."""
    async with connect(worker.target) as channel:
        other = gateway(kept, channel)
        told = await asyncio.gather(*map(all_of, await meeting(runs, other, kept)))
        assert len(runs.live.by_key) + len(other.live.by_key) == 0
        await other.live.stop(5)
    follower, leader = sorted(told, key=len)
    assert all(event in leader for event in follower), "what is logged, and not what streamed"
    assert [event.sequence for event in follower] == list(range(1, leader[-1].sequence + 1))
    assert follower[-1].HasField("finished")
    assert len(worker.generated) == 2, "a turn of each agent"


async def test_another_workflow_under_the_same_request_at_another_gateway(
    runs: Runs, worker: ScriptedWorker, kept: Kept
) -> None:
    async with connect(worker.target) as channel:
        other = gateway(kept, channel)
        outcomes = await meeting(runs, other, kept, FILE, FILE.replace("speak", "sing"))
        await other.live.stop(5)
    assert sum(isinstance(each, InvalidArgument) for each in outcomes) == 1


def test_an_unknown_model_is_told_with_those_there_are() -> None:
    with pytest.raises(NotFound, match="registered are other"):
        check_memories(agent_keys(definition({"agents": ["a"]}), "n", "wf-1", "demo"), ["other"])


def test_series_of_ended_runs_that_can_be_known_begin_at_zero() -> None:
    registry = CollectorRegistry()
    WorkflowMetrics(registry)
    going_on = (State.WORKFLOW_STATE_UNSPECIFIED, State.WORKFLOW_STATE_RUNNING)
    for state in (state for state in State.values() if state not in going_on):
        labels = {"state": short_name(State.DESCRIPTOR, state)}
        assert registry.get_sample_value("agentmem_gateway_workflows_ended_total", labels) == 0
