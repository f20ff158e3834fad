"""Gateways that share a store: who is asked for another's run follows its record, and a run without gateway is taken
over. Records are a dictionary.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest

from agentmem.channels import connect
from agentmem.errors import AgentmemError, DataLoss, FailedPrecondition, NotFound, Unavailable
from gateway.workflows import attendance
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.records import State, TakenOver
from tests.gateway.running import eventually
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.workflows.several import TURNS, WHO, Gateway, SharedTurns, end, once
from tests.gateway.workflows.test_runs import Kept, RecordsIn, all_of


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(attendance, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def turns(worker: ScriptedWorker) -> SharedTurns:
    worker.script = shared = SharedTurns()
    return shared


@pytest.fixture
def kept() -> Kept:
    return Kept()


@asynccontextmanager
async def sharing(worker: ScriptedWorker, kept: Kept, most: int = 4) -> AsyncIterator[Gateway]:
    async with connect(worker.target) as channel:
        gateway = Gateway(kept, channel, most)
        yield gateway
        await gateway.runs.live.stop(5)


@pytest.fixture
async def a(worker: ScriptedWorker, turns: SharedTurns, kept: Kept) -> AsyncIterator[Gateway]:
    async with sharing(worker, kept) as gateway:
        yield gateway


@pytest.fixture
async def b(worker: ScriptedWorker, turns: SharedTurns, kept: Kept) -> AsyncIterator[Gateway]:
    async with sharing(worker, kept) as gateway:
        yield gateway


@pytest.fixture
async def c(worker: ScriptedWorker, turns: SharedTurns, kept: Kept) -> AsyncIterator[Gateway]:
    async with sharing(worker, kept, most=2) as gateway:
        yield gateway


async def test_who_asks_another_gateway_follows_the_run(a: Gateway, b: Gateway, turns: SharedTurns) -> None:
    workflow_id = await a.begin()
    first = asyncio.create_task(a.follow(workflow_id))
    follower = asyncio.create_task(b.follow(workflow_id))
    watcher = asyncio.create_task(all_of(await b.runs.watch(WHO, workflow_id, 1)))
    for one in (a, b):
        assert await one.state(workflow_id) == State.WORKFLOW_STATE_RUNNING
    turns.gate.set()
    logged = [event for event in await first if event.WhichOneof("event") not in ("agent_delta", "agent_speaking")]
    assert await follower == logged
    assert await watcher == logged[1:]
    assert (end(logged).state, end(logged).turns) == (State.WORKFLOW_STATE_SUCCEEDED, TURNS)
    assert b.going_on == [] and once(turns)


async def test_a_run_that_fails_ends_the_streams_of_who_follows_it(a: Gateway, b: Gateway, turns: SharedTurns) -> None:
    workflow_id = await a.begin()
    follower = asyncio.create_task(b.follow(workflow_id))
    a.keys.known.clear()
    await eventually(lambda: len(b.records.read) == 2)
    turns.gate.set()
    failed = end(await follower)
    assert failed.state == State.WORKFLOW_STATE_FAILED and [agent.name for agent in failed.agents] == ["ada", "bob"]
    assert [payload for _, payload in b.records.read] == [True] + [False] * (len(b.records.read) - 1)


async def test_a_run_is_cancelled_and_deleted_through_another_gateway(
    a: Gateway, b: Gateway, turns: SharedTurns
) -> None:
    workflow_id = await a.begin()
    first = asyncio.create_task(a.follow(workflow_id))
    await eventually(lambda: bool(turns.begun))
    with pytest.raises(FailedPrecondition):
        await b.runs.delete("n", workflow_id)
    for _ in range(2):
        assert (await b.runs.cancel("n", workflow_id)).state == State.WORKFLOW_STATE_CANCELLED
    await a.look()
    with pytest.raises(Unavailable, match="send the request again"):
        await first
    assert end(await a.follow(workflow_id)).state == State.WORKFLOW_STATE_CANCELLED
    assert a.going_on == [] and turns.committed == []
    await b.runs.delete("n", workflow_id)
    assert a.kept.records == {}


async def test_a_busy_run_is_cancelled_through_another_gateway_without_reading_its_events(
    a: Gateway,
    b: Gateway,
) -> None:
    workflow_id = await a.begin()
    await eventually(lambda: a.kept.records["n", workflow_id].stored_events > 0)
    run = a.runs.live.by_key["n", workflow_id].stored

    async def write() -> None:
        written = 0
        while written < 100:
            with suppress(TakenOver):  # the run stored an event of its own meanwhile
                await a.records.append(run, [LoggedEvent(key="k", event=Event(sequence=run.stored_events + 1))])
                written += 1

    writing = asyncio.create_task(write())
    assert (await b.runs.cancel("n", workflow_id)).state == State.WORKFLOW_STATE_CANCELLED
    async with asyncio.timeout(30):
        await writing
    assert all(not events for events, _ in b.records.read)
    stored = a.kept.records["n", workflow_id].events
    assert stored[-1].event.sequence == len(stored) > 100


async def test_a_gateway_that_is_gone_leaves_its_runs_to_another(
    a: Gateway, b: Gateway, turns: SharedTurns, clock: list[float]
) -> None:
    """A moment later; and who is heard of again, as all are after a failover of the database, is waited for again."""
    workflow_id = await a.begin()
    await a.vanish()
    assert await b.state(workflow_id) == State.WORKFLOW_STATE_INTERRUPTED
    longest = attendance.SURE_SECONDS + attendance.SPREAD_SECONDS
    await b.look()
    clock[0] += attendance.SURE_SECONDS - 0.1
    await b.look()
    a.kept.there.add(a.records.holder)
    clock[0] += longest
    await b.look()
    a.kept.there.remove(a.records.holder)
    await b.look()
    assert b.going_on == []
    clock[0] += longest
    b.unready = "its worker is away"
    await b.look()
    assert b.going_on == []
    b.unready = ""
    await b.look()
    assert b.going_on == [workflow_id]
    turns.gate.set()
    assert end(await b.follow(workflow_id)).turns == TURNS
    assert once(turns)
    assert b.metrics.taken_over._value.get() == 1  # type: ignore[attr-defined]


async def test_a_gateway_that_was_only_cut_off_stops(a: Gateway, b: Gateway, turns: SharedTurns) -> None:
    """By its next write, or by what the store says: each turn is there once."""
    workflow_id = await a.begin()
    first = asyncio.create_task(a.follow(workflow_id))
    await eventually(lambda: len(turns.begun) == 1)
    a.kept.there.remove(a.records.holder)
    assert await b.runs.take_over("n", workflow_id)
    await eventually(lambda: turns.begun[1:] == turns.begun[:1])
    turns.gate.set()
    with pytest.raises(Unavailable, match="send the request again"):
        await first
    assert end(await b.follow(workflow_id)).state == State.WORKFLOW_STATE_SUCCEEDED
    assert a.going_on == [] and once(turns)


async def test_a_follower_of_a_gateway_that_vanishes_comes_again_and_takes_the_run_over(
    a: Gateway, b: Gateway, turns: SharedTurns
) -> None:
    workflow_id = await a.begin()
    follower = asyncio.create_task(b.follow(workflow_id))
    await a.vanish()
    with pytest.raises(Unavailable, match="send the request again"):
        await follower
    turns.gate.set()
    assert end(await b.follow(workflow_id)).turns == TURNS
    assert once(turns)


@pytest.mark.parametrize("compares", [True, False])
async def test_of_two_that_take_a_run_over_at_once_one_does(
    a: Gateway, b: Gateway, c: Gateway, turns: SharedTurns, *, compares: bool
) -> None:
    """A store that does not compare versions would let both."""
    workflow_id = await a.begin()
    await a.vanish()
    a.kept.compares = compares
    took = await asyncio.gather(*(one.runs.take_over("n", workflow_id) for one in (b, c)))
    assert took.count(True) == (1 if compares else 2)
    a.kept.compares = True
    turns.gate.set()
    if compares:
        loser = (b, c)[took.index(False)]
        assert end(await loser.follow(workflow_id)).turns == TURNS
        assert loser.going_on == [] and once(turns)


@pytest.mark.parametrize("what", ["a key that is not known", "it has failed", "its gateway is there"])
async def test_a_run_that_is_not_taken_over(a: Gateway, b: Gateway, what: str) -> None:
    workflow_id = await a.begin()
    if what != "its gateway is there":
        await a.vanish()
    if what == "a key that is not known":
        b.keys.known.clear()
    elif what == "it has failed":
        a.kept.records["n", workflow_id].workflow.state = State.WORKFLOW_STATE_FAILED
    assert not await b.runs.take_over("n", workflow_id)
    assert b.going_on == [] and b.records.read == [(False, False)]


async def test_no_more_at_once_than_a_namespace_may_have(
    a: Gateway, c: Gateway, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are tried later; so is all where the store does not answer."""
    named = [await a.begin(f"r{number}") for number in range(3)]
    await a.vanish()
    await c.look()
    clock[0] += attendance.SURE_SECONDS + attendance.SPREAD_SECONDS
    a.kept.refuses = Unavailable("the store is away")
    await c.look()
    assert c.going_on == []
    a.kept.refuses = None
    c.records.read.clear()
    for _ in range(2):
        await c.look()
        assert len(c.going_on) == 2
        assert sum(each.message == "workflow not taken over" for each in caplog.records) == 1
        assert c.records.read.count((True, True)) == 2
    await c.runs.cancel("n", c.going_on[0])
    clock[0] += attendance.AGAIN_SECONDS + 1
    await c.look()
    assert len(c.going_on) == 2 and set(c.going_on) < set(named)


@pytest.mark.parametrize("error", [DataLoss("it is damaged"), ValueError("a bug")])
async def test_a_run_that_cannot_be_taken_over_is_tried_ever_less_often_and_ends_no_gateway(
    a: Gateway,
    b: Gateway,
    clock: list[float],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    await a.begin()
    await a.vanish()
    await b.look()
    tried: list[float] = []

    async def fail(*_: object) -> bool:
        tried.append(clock[0])
        raise error

    monkeypatch.setattr(b.runs, "take_over", fail)
    caplog.set_level("WARNING", attendance.__name__)
    for _ in range(1000):
        clock[0] += 1
        await b.look()
    waits = [after - before for before, after in itertools.pairwise(tried)]
    assert waits == [15, 30, 60, 120, 240, 300]
    assert len(caplog.records) == (1 if isinstance(error, DataLoss) else len(tried))


async def test_a_takeover_that_waits_for_the_store_does_not_make_its_gateway_silent(
    a: Gateway, b: Gateway, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow_id = await a.begin()
    await a.vanish()
    monkeypatch.setattr(attendance, "PERIOD_SECONDS", 0.01)
    before = a.kept.writers
    a.kept.gate.clear()
    await b.attendance.start()
    await eventually(lambda: bool(b.attendance._lost))
    clock[0] += attendance.SURE_SECONDS + attendance.SPREAD_SECONDS
    await eventually(lambda: a.kept.writers > before)
    b.kept.there.discard(b.records.holder)
    await eventually(lambda: b.records.holder in b.kept.there)
    a.kept.gate.set()
    await eventually(lambda: b.going_on == [workflow_id])
    await b.attendance.stop(5)


async def test_a_gateway_that_ends_leaves_its_runs_at_once(a: Gateway, b: Gateway, turns: SharedTurns) -> None:
    await a.attendance.start()
    workflow_id = await a.begin()
    await a.attendance.stop(5)
    assert await b.attendance._records.attend() == (set(), [("n", workflow_id)])
    assert await b.state(workflow_id) == State.WORKFLOW_STATE_INTERRUPTED


@pytest.mark.parametrize("at", ["its reading", "its writing"])
async def test_a_gateway_that_ends_in_a_takeover_leaves_the_run_to_others(
    a: Gateway, b: Gateway, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at SIGTERM: what is being written is written, and nobody has the run."""
    workflow_id = await a.begin()
    await a.vanish()
    await b.attendance.start()
    reading, read = asyncio.Event(), asyncio.Event()
    if at == "its reading":

        async def slow(*_: object, **__: object) -> object:
            reading.set()
            await read.wait()
            return await RecordsIn.get(b.records, "n", workflow_id)

        monkeypatch.setattr(b.records, "get", slow)
    else:
        a.kept.gate.clear()
    before, taking = a.kept.writers, asyncio.create_task(b.runs.take_over("n", workflow_id))
    await (reading.wait() if at == "its reading" else eventually(lambda: a.kept.writers == before + 1))
    stopping = asyncio.create_task(b.attendance.stop(5))
    await asyncio.sleep(0)
    read.set()
    a.kept.gate.set()
    await stopping
    with pytest.raises(AgentmemError):
        await taking
    assert b.going_on == []
    assert ("n", workflow_id) in (await a.attendance._records.attend(leaving=True))[1]


async def test_what_is_deleted_ends_its_followers_streams(a: Gateway, b: Gateway) -> None:
    workflow_id = await a.begin()
    follower = asyncio.create_task(b.follow(workflow_id))
    await a.runs.cancel("n", workflow_id)
    await a.runs.delete("n", workflow_id)
    with pytest.raises(NotFound):
        await follower
