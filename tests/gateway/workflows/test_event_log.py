"""The event log: durable before it is told, in order, once; and what memory saved, by its events."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.v1 import workflow_pb2
from agentmem.validation import MAX_RECORD_BYTES
from gateway.workflows.event_log import Event, EventLog, LoggedEvent, Totals
from tests.gateway.workflows.cli import events as told
from tests.gateway.workflows.cli.events import ABSENT, EVICTED, EXTEND, RUN, numbered, step, usage


class Record:
    """A record whose writes are noted; each waits for `gate`."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.written: list[list[str]] = []
        self.gate, self.reached = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def write(self, events: Sequence[LoggedEvent]) -> None:
        self.reached.set()
        await self.gate.wait()
        self.events += events
        self.written.append([logged.key for logged in events])

    def log(self, used: int = 0) -> EventLog:
        return EventLog(self.events, used, self.write)


def spoke(text: str) -> Event:
    return Event(agent_spoke=workflow_pb2.AgentSpoke(text=text))


def delta(text: str) -> Event:
    return Event(agent_delta=workflow_pb2.AgentDelta(text=text))


def text(event: Event) -> str:
    return event.agent_spoke.text or event.agent_delta.text


async def read(log: EventLog, after: int = 0) -> list[str]:
    return [text(event) async for event in log.read(after)]


async def test_what_is_logged_is_told_when_it_is_written() -> None:
    record = Record()
    log = record.log()
    record.gate.clear()
    events = log.read(0)
    log.append("a", spoke("a"))
    flushing = asyncio.create_task(log.flush())
    coming = asyncio.ensure_future(anext(events))
    await record.reached.wait()
    await asyncio.sleep(0.01)
    assert not coming.done()
    log.publish(delta("x"))
    log.append("b", spoke("b"))
    record.gate.set()
    assert text(await coming) == "a"
    await flushing
    await log.flush()
    log.close()
    assert [text(event) async for event in events] == ["x", "b"]
    assert record.written == [["a"], ["b"]]


async def test_who_comes_late_gets_what_is_logged() -> None:
    log = Record().log()
    for name in ("a", "b", "c"):
        log.append(name, spoke(name))
        log.publish(delta(f"{name}…"))
        await log.flush()
    log.close()
    assert await read(log) == ["a", "b", "c"]
    assert await read(log, after=2) == ["c"]
    assert await read(log, after=9) == []


async def test_an_event_is_logged_once_also_by_another_execution() -> None:
    record = Record()
    log = record.log()
    log.append("a", spoke("first"))
    await log.flush()
    again = record.log()
    again.append("a", spoke("second"))
    again.append("b", spoke("b"))
    await again.flush()
    again.close()
    assert await read(again) == ["first", "b"]
    found = again.find("a")
    assert found is not None
    assert text(found.event) == "first"
    assert again.find("c") is None
    assert [logged.event.sequence for logged in record.events] == [1, 2]


async def test_a_slow_reader_loses_what_streams_and_nothing_that_is_logged() -> None:
    log = Record().log()
    events = log.read(0)
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    log.publish(delta("first"))
    assert text(await coming) == "first"
    for number in range(5000):
        log.publish(delta(str(number)))
        if number % 1000 == 0:
            log.append(str(number), spoke(f"said {number}"))
            await log.flush()
    log.close()
    got = [text(event) async for event in events]
    assert [each for each in got if each.startswith("said")] == [f"said {number}" for number in range(0, 5000, 1000)]
    assert len(got) < 1100


async def test_an_interruption_is_told_after_the_rest() -> None:
    log = Record().log()
    log.append("a", spoke("a"))
    await log.flush()
    log.close(Unavailable("gone"))
    events = log.read(0)
    assert text(await anext(events)) == "a"
    with pytest.raises(Unavailable):
        await anext(events)


async def test_a_write_is_not_left_half_done() -> None:
    """The next write follows the one whose waiter was cancelled; two at once would be two versions of the record."""
    record = Record()
    log = record.log()
    record.gate.clear()
    log.append("a", spoke("a"))
    flushing = asyncio.create_task(log.flush())
    await record.reached.wait()
    flushing.cancel()
    log.append("b", spoke("b"))
    after = asyncio.create_task(log.flush())
    await asyncio.sleep(0.01)
    assert record.written == []
    record.gate.set()
    await after
    assert record.written == [["a"], ["b"]]


async def test_text_streams_on_after_a_write_that_it_overlapped() -> None:
    record = Record()
    log = record.log()
    events = log.read(0)
    record.gate.clear()
    log.append("a", spoke("a"))
    flushing = asyncio.create_task(log.flush())
    await record.reached.wait()
    log.publish(delta("x"))
    record.gate.set()
    await flushing
    log.publish(delta("y"))
    assert [text(await anext(events)) for _ in range(1)] == ["a"]
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    log.publish(delta("z"))
    assert text(await coming) == "z"


async def test_a_failure_is_saved_without_what_could_not_be_stored() -> None:
    record = Record()
    log = record.log()
    log.append("a", spoke("a"))
    await log.flush()
    log.append("b", spoke("b" * MAX_RECORD_BYTES))
    with pytest.raises(FailedPrecondition):
        await log.flush()
    await log.save()
    assert record.written == [["a"], []]
    assert log.stored_totals().turns == 1


async def test_a_full_record_has_room_for_the_end() -> None:
    """The limit counts what is beside the events, and those of an execution before."""
    record = Record()
    log = record.log(used=MAX_RECORD_BYTES // 2)
    log.append("a", spoke("a" * (MAX_RECORD_BYTES // 4)))
    await log.flush()
    again = record.log(used=MAX_RECORD_BYTES // 2)
    again.append("b", spoke("b" * (MAX_RECORD_BYTES // 4 - 60_000)))
    with pytest.raises(FailedPrecondition):
        await again.flush()
    await again.save()
    again.append("finished", Event(finished=workflow_pb2.WorkflowFinished()))
    await again.flush()
    assert record.written == [["a"], [], ["finished"]]


async def test_the_end_is_told_to_the_slowest() -> None:
    log = Record().log()
    events = log.read(0)
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    for number in range(3000):
        log.publish(delta(str(number)))
    log.publish(Event(finished=workflow_pb2.WorkflowFinished()))
    log.close()
    await coming
    *_, last = [event async for event in events]
    assert last.HasField("finished")


def test_sums() -> None:
    assert Totals(RUN).sums == workflow_pb2.WorkflowTotals(
        turns=4,
        notes=1,
        listenings=1,
        replayed=1,
        resent_tokens=200,  # who only listened would not have been asked by a server without memory
        prefilled_tokens=159,
        reused_tokens=51,
        recomputed_tokens=20,  # a ledger had 36 tokens, of which 16 were there; what was never seen does not count
    )


def test_each_step_has_the_sums_up_to_it() -> None:
    totals = Totals()
    for event in RUN:
        totals.add(event)
        kind = event.WhichOneof("event")
        if kind in ("agent_spoke", "agent_listened"):
            assert getattr(event, kind).totals == totals.sums


COUNTS = st.tuples(*(st.integers(0, 5000) for _ in range(4)))


@given(st.lists(st.tuples(COUNTS, st.sampled_from([0, ABSENT, EVICTED])), max_size=20))
def test_tokens_come_from_somewhere(turns: list[tuple[tuple[int, ...], int]]) -> None:
    events = []
    for (new, hot, warm, said), missed in turns:
        events.append(told.spoke("a", "x", "p", step(EXTEND, usage(new + hot + warm, hot, warm, said), missed)))
    sums = Totals(numbered(*events)).sums
    assert sums.reused_tokens + sums.prefilled_tokens == sums.resent_tokens
    assert 0 <= sums.recomputed_tokens <= sums.prefilled_tokens
