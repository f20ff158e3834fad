"""Which runs that nobody attends to this gateway goes on with, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import grpc
import pytest

from agentmem.channels import connect
from agentmem.errors import Unavailable
from agentmem.v1 import cluster_pb2
from gateway.edge.callers import Caller
from gateway.upstream import ChannelWorker
from gateway.workflows import takeover
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.metrics import WorkflowMetrics
from gateway.workflows.owners import NOBODY, Owner
from gateway.workflows.records import State, StoredRun
from gateway.workflows.runs import Runs
from gateway.workflows.takeover import Takeover
from tests.gateway.running import eventually
from tests.gateway.scripted import ScriptedWorker, hello
from tests.gateway.workflows.test_runs import FILE, WHO, Kept, all_of, for_ever

GONE = Owner("b", 1, "k1")


class Keys:
    """Lets those in whose keys are known."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)

    def authenticate(self, credential: str | None) -> Caller:
        raise NotImplementedError

    def stands(self, who: Caller) -> bool:
        return who.key_id in self.known


class Nodes:
    """This node is a; b and c are there as long as they are among `there`."""

    name = "a"

    def __init__(self) -> None:
        self.epoch = 7
        self.unready = ""
        self.there: set[tuple[str, int]] = set()
        self.found: list[cluster_pb2.UnattendedRun] = []
        self.before = 0
        self.fails = False

    def attends(self, name: str, epoch: int) -> bool:
        return (name, epoch) in self.there

    async def reach(self, name: str) -> grpc.aio.Channel | None:
        return None

    async def unattended(self) -> list[cluster_pb2.UnattendedRun]:
        if self.fails:
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, "away")
        return self.found

    def place(self, namespace: str, workflow_id: str, before: str) -> int:
        return self.before


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def keys() -> Keys:
    return Keys("k1")


@pytest.fixture
async def runs(worker: ScriptedWorker, kept: Kept, nodes: Nodes, keys: Keys) -> AsyncIterator[Runs]:
    worker.script = for_ever
    async with connect(worker.target) as channel:
        made = Runs(cast(Any, kept), ChannelWorker(channel), keys, WorkflowMetrics(None), 2, nodes)
        yield made
        await made.live.stop(5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as upkeep reads it."""
    now = [100.0]
    monkeypatch.setattr(takeover, "time", type("clock", (), {"monotonic": lambda: now[0]}))
    return now


async def left(runs: Runs, kept: Kept, nodes: Nodes, owner: Owner = GONE, name: str = "r") -> str:
    """A run that another gateway has begun, and that this one is told of; its name."""
    await runs.begin(Caller("n", owner.key_id or "k1"), name, FILE, {}, 0)
    ((_, workflow_id),) = (key for key in runs.live.by_key if key[1] not in [run.workflow_id for run in nodes.found])
    run = runs.live.by_key[("n", workflow_id)]
    run.task.cancel()
    with pytest.raises(Unavailable):
        await all_of(run.log.read(0))
    while ("n", workflow_id) in runs.live.by_key:
        await runs._records.get("n", workflow_id)
    kept.records["n", workflow_id].owner = owner
    nodes.found.append(cluster_pb2.UnattendedRun(namespace="n", workflow_id=workflow_id, node=owner.node))
    return workflow_id


def record(kept: Kept, workflow_id: str) -> StoredRun:
    return kept.records["n", workflow_id]


async def test_a_run_is_gone_on_with_for_the_caller_that_it_was_for(runs: Runs, kept: Kept, nodes: Nodes) -> None:
    workflow_id = await left(runs, kept, nodes)
    assert await runs.take_over("n", workflow_id)
    assert record(kept, workflow_id).owner == Owner("a", 7, "k1")
    assert runs.live.goes_on("n", workflow_id)
    assert not await runs.take_over("n", workflow_id), "it goes on here"


@pytest.mark.parametrize("what", ["a key that is not known", "nobody had it", "its node is there", "it has ended"])
async def test_a_run_that_is_left(runs: Runs, kept: Kept, nodes: Nodes, keys: Keys, what: str) -> None:
    workflow_id = await left(runs, kept, nodes)
    if what == "a key that is not known":
        keys.known.clear()
    elif what == "nobody had it":
        record(kept, workflow_id).owner = NOBODY
    elif what == "its node is there":
        nodes.there = {("b", 1)}
    else:
        record(kept, workflow_id).workflow.state = State.WORKFLOW_STATE_FAILED
    assert not await runs.take_over("n", workflow_id)
    assert not runs.live.goes_on("n", workflow_id)
    assert record(kept, workflow_id).owner.node in ("", "b")


async def test_no_more_at_once_than_a_namespace_may_have(
    runs: Runs, kept: Kept, nodes: Nodes, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    named = [await left(runs, kept, nodes, name=f"r{number}") for number in range(3)]
    upkeep = Takeover(runs, nodes)
    for run in nodes.found:
        run.node = "a"  # so that nothing is waited for

    def refusals() -> int:
        return sum(each.message == "workflow not taken over" for each in caplog.records)

    def going_on() -> list[str]:
        return [workflow_id for workflow_id in named if runs.live.goes_on("n", workflow_id)]

    for refused in (1, 2):
        await upkeep.look()
        assert len(going_on()) == 2
        assert refusals() == refused
        await upkeep.look()
        assert refusals() == refused, "it is tried later"
        clock[0] += takeover.AGAIN_SECONDS + 1
    first, _ = going_on()
    await runs.cancel(WHO, first)
    nodes.found = [run for run in nodes.found if run.workflow_id != first]
    await upkeep.look()
    assert going_on() == [workflow_id for workflow_id in named if workflow_id != first]


async def test_others_go_first_and_a_moment_is_waited(runs: Runs, kept: Kept, nodes: Nodes, clock: list[float]) -> None:
    workflow_id = await left(runs, kept, nodes)
    nodes.before = 1
    upkeep = Takeover(runs, nodes)
    for seconds in (0.0, takeover.SURE_SECONDS, takeover.TURN_SECONDS - 0.1):
        clock[0] += seconds
        await upkeep.look()
        assert not runs.live.goes_on("n", workflow_id)
    clock[0] += 0.2
    await upkeep.look()
    assert runs.live.goes_on("n", workflow_id)


async def test_who_is_heard_of_again_is_waited_for_anew(
    runs: Runs, kept: Kept, nodes: Nodes, clock: list[float]
) -> None:
    """As all nodes after a failover of the database."""
    workflow_id = await left(runs, kept, nodes)
    upkeep = Takeover(runs, nodes)
    await upkeep.look()
    found, nodes.found = nodes.found, []
    clock[0] += takeover.SURE_SECONDS + 1
    await upkeep.look()
    nodes.found = found
    await upkeep.look()
    assert not runs.live.goes_on("n", workflow_id)
    clock[0] += takeover.SURE_SECONDS + 1
    await upkeep.look()
    assert runs.live.goes_on("n", workflow_id)


async def test_what_could_not_be_taken_over_is_tried_again_later(
    runs: Runs, kept: Kept, nodes: Nodes, keys: Keys, clock: list[float]
) -> None:
    workflow_id = await left(runs, kept, nodes)
    nodes.found[0].node = "a"
    keys.known.clear()
    upkeep = Takeover(runs, nodes)
    await upkeep.look()
    keys.known.add("k1")
    nodes.fails = True
    await upkeep.look()
    nodes.fails = False
    await upkeep.look()
    assert not runs.live.goes_on("n", workflow_id)
    clock[0] += takeover.AGAIN_SECONDS + 1
    await upkeep.look()
    assert runs.live.goes_on("n", workflow_id)


async def test_a_gateway_that_stops_leaves_its_runs_to_others(runs: Runs, kept: Kept, nodes: Nodes) -> None:
    workflow_id = await left(runs, kept, nodes)
    await runs.take_over("n", workflow_id)
    await runs.live.stop(5)
    assert record(kept, workflow_id).owner == Owner("a", 0, "k1")
    assert record(kept, workflow_id).workflow.state == State.WORKFLOW_STATE_RUNNING


@pytest.mark.parametrize("at", ["its reading", "its writing"])
async def test_a_gateway_that_stops_in_a_takeover_leaves_the_run_to_others(
    runs: Runs, kept: Kept, nodes: Nodes, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at SIGTERM: upkeep is cancelled, then runs are stopped, and what is being written is written."""
    workflow_id = await left(runs, kept, nodes)
    written = record(kept, workflow_id).version
    reading, read = asyncio.Event(), asyncio.Event()
    if at == "its reading":

        async def slow(*key: Any) -> StoredRun | None:
            reading.set()
            await read.wait()
            return await type(kept).get(kept, *key)

        monkeypatch.setattr(kept, "get", slow)
    else:
        kept.gate.clear()
    before, upkeep = kept.writers, asyncio.create_task(runs.take_over("n", workflow_id))
    if at == "its reading":
        await reading.wait()
    else:
        await eventually(lambda: kept.writers == before + 1)
    upkeep.cancel()
    stopping = asyncio.create_task(runs.live.stop(5))
    await asyncio.sleep(0)
    read.set()
    kept.gate.set()
    await asyncio.wait({upkeep, stopping})
    assert stopping.exception() is None
    assert upkeep.cancelled()
    assert not runs.live.goes_on("n", workflow_id)
    left_to = GONE if at == "its reading" else Owner("a", 0, "k1")
    assert record(kept, workflow_id).owner == left_to, "which no node has"
    assert record(kept, workflow_id).version == written + (0 if at == "its reading" else 2)
    assert record(kept, workflow_id).workflow.state == State.WORKFLOW_STATE_RUNNING


async def test_what_was_said_when_a_gateway_stopped_is_counted_once(
    worker: ScriptedWorker, kept: Kept, nodes: Nodes, keys: Keys
) -> None:
    """A turn whose event waited for a write that was under way is in the record that counts it."""
    worker.script = hello

    class Slow(Kept):
        async def create(self, run: StoredRun) -> None:
            await super().create(run)
            self.gate.clear()

    slow = Slow()
    async with connect(worker.target) as channel:
        first, second = (
            Runs(cast(Any, slow), ChannelWorker(channel), keys, WorkflowMetrics(None), 2, nodes) for _ in range(2)
        )
        await first.begin(Caller("n", "k1"), "r", FILE.replace("system: You are a.", ""), {}, 0)
        [run] = first.live.by_key.values()
        await eventually(lambda: run.workflow.turns == 1)
        stopping = asyncio.create_task(first.live.stop(5))
        await asyncio.sleep(0)
        slow.gate.set()
        await stopping
        [stored] = slow.records.values()
        assert spoken([logged.event for logged in stored.events]) == stored.workflow.turns == 1
        assert await second.take_over(*run.stored.key)
        events = await all_of(second.live.by_key[run.stored.key].log.read(0))
        assert spoken(events) == events[-1].finished.workflow.turns == 2
        await second.live.stop(5)


def spoken(events: Sequence[Event]) -> int:
    """How many turns events tell of."""
    return sum(event.HasField("agent_spoke") for event in events)


async def test_a_gateway_that_stops_leaves_a_run_whose_record_is_being_written(
    runs: Runs, kept: Kept, nodes: Nodes
) -> None:
    """Anew, because its store was started again: that nobody has the run is written behind it."""
    workflow_id = await left(runs, kept, nodes)
    await runs.take_over("n", workflow_id)
    await said_something(runs, workflow_id)
    nodes.epoch += 1
    kept.gate.clear()
    before, upkeep = kept.writers, asyncio.create_task(runs.live.restate())
    await eventually(lambda: kept.writers == before + 1)
    upkeep.cancel()
    stopping = asyncio.create_task(runs.live.stop(5))
    await eventually(lambda: not runs.live.goes_on("n", workflow_id))
    kept.gate.set()
    await asyncio.wait({upkeep, stopping})
    assert stopping.exception() is None
    assert record(kept, workflow_id).owner == Owner("a", 0, "k1")


async def test_what_could_not_be_written_anew_is_written_later(runs: Runs, kept: Kept, nodes: Nodes) -> None:
    """The run itself writes nothing during its turn, for which others would take it over."""
    workflow_id = await left(runs, kept, nodes)
    await runs.take_over("n", workflow_id)
    await said_something(runs, workflow_id)
    nodes.epoch += 1
    kept.refuses = Unavailable("the store is away")
    await runs.live.restate()
    kept.refuses = None
    assert record(kept, workflow_id).owner == Owner("a", nodes.epoch - 1, "k1")
    await runs.live.restate()
    assert record(kept, workflow_id).owner == Owner("a", nodes.epoch, "k1")


async def said_something(runs: Runs, workflow_id: str) -> None:
    """Wait until a run is in a turn, for which nothing is written."""
    async for event in runs.live.by_key["n", workflow_id].log.read(0):
        if event.HasField("agent_delta"):
            return


class Checked(Kept):
    """What has ended has said so: those who follow a run wait for that event."""

    async def append(self, run: StoredRun, events: Sequence[LoggedEvent]) -> None:
        await super().append(run, events)
        stored = self.records[run.key]
        ended = stored.workflow.state == State.WORKFLOW_STATE_SUCCEEDED
        assert ended == any(logged.event.HasField("finished") for logged in stored.events)


async def test_a_run_is_never_written_as_ended_without_its_last_event(worker: ScriptedWorker, nodes: Nodes) -> None:
    """Whenever the store is started again, for which records are written anew: here without a pause."""
    worker.script = hello
    kept = Checked()
    async with connect(worker.target) as channel:
        runs = Runs(cast(Any, kept), ChannelWorker(channel), Keys("k1"), WorkflowMetrics(None), 2, nodes)
        events = asyncio.create_task(all_of(await runs.begin(Caller("n", "k1"), "r", FILE, {}, 0)))
        while not events.done():
            nodes.epoch += 1
            await runs.live.restate()
            await asyncio.sleep(0)
        assert (await events)[-1].finished.workflow.state == State.WORKFLOW_STATE_SUCCEEDED
        [stored] = kept.records.values()
        assert stored.version > len(stored.events), "it was written anew"
        await runs.live.stop(5)


async def test_on_a_single_machine_no_record_names_an_owner(worker: ScriptedWorker, kept: Kept) -> None:
    worker.script = for_ever
    async with connect(worker.target) as channel:
        alone = Runs(cast(Any, kept), ChannelWorker(channel), Keys(""), WorkflowMetrics(None), 2)
        await alone.begin(WHO, "r", FILE, {}, 0)
        await alone.live.stop(5)
    [run] = kept.records.values()
    assert run.owner == NOBODY and run.version <= 3, "and nothing is written at the end"
