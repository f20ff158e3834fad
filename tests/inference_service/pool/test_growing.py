"""A pool that takes memory as it needs it, beside others who take it, too."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.pool import admission
from inference_service.pool.admission import Reservation
from inference_service.pool.blocks import Segment
from inference_service.pool.growing import segment_of
from inference_service.pool.kv import Closed, Table
from tests.inference_service.loop import settle

from .lodging import LONG, Memory, blocks, enter, key

BLOCK = 1000
"""Bytes of a block."""


@dataclass
class Device:
    """A device of so many bytes, and a pool on it of segments of two blocks."""

    total: int
    others: int = 0
    memory: Memory = field(init=False)
    closed: list[Closed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = Memory(10, segments=(Segment(2, BLOCK), None))
        self.memory.admission.spare = self.spare
        self.memory.admission.growth.closed = self.closed.append

    def spare(self) -> int:
        return self.total - self.others - self.memory.pool.open_bytes - self.memory.admission.promised_bytes

    @property
    def open_blocks(self) -> int:
        return self.memory.pool.open_bytes // BLOCK

    async def agent(self, name: str, *ids: int) -> None:
        """An agent's turn, which leaves its blocks in the pool."""
        room = await self.memory.admission.reserve(blocks(len(ids), of=name), 0)
        self.memory.keep(name, room, BLOCK_TOKENS * len(ids), *ids)
        self.memory.admission.release(room)


def test_segments_are_worth_an_allocation() -> None:
    assert segment_of(1600, 1 << 20) == Segment(100, 1 << 20), "a sixteenth"
    assert segment_of(160, 1 << 20) == Segment(64, 1 << 20), "64 MiB"
    assert segment_of(10, 1 << 20) == Segment(10, 1 << 20), "all of it"
    assert segment_of(10, 0) == Segment(10, 0)
    assert segment_of(0, 5) == Segment(1, 5)
    assert segment_of(1600, 1 << 20, 50 << 20) == Segment(50, 1 << 20), "no more than is there"
    assert segment_of(1600, 1 << 20, 0) == Segment(7, 1 << 20), "but no more than 256 of them"
    assert segment_of(10, 0, 0) == Segment(10, 0)


async def test_a_pool_grows_only_as_agents_come() -> None:
    device = Device(100 * BLOCK)
    assert device.open_blocks == 2
    await device.agent("a", 1, 2)
    assert device.open_blocks == 2
    await device.agent("b", 3, 4, 5)
    assert device.open_blocks == 6
    assert device.memory.agents == "ab"


async def test_where_the_device_has_no_more_idle_agents_go_instead() -> None:
    device = Device(5 * BLOCK)
    await device.agent("a", 1, 2)
    await device.agent("b", 3, 4)
    assert (device.open_blocks, device.memory.agents) == (4, "ab")
    await device.agent("c", 5, 6)
    assert (device.open_blocks, device.memory.agents) == (4, "bc")
    device.memory.check()


async def test_then_those_go_that_leave_whole_segments() -> None:
    device = Device(14 * BLOCK)
    for number, name in enumerate("abcde"):
        await device.agent(name, 10 * number, 10 * number + 1)
    assert device.open_blocks == 10
    device.others = 7 * BLOCK
    room = await device.memory.admission.reserve(blocks(2, 0, 1), 0)
    assert device.memory.agents == "ade", "two segments for three blocks; the first segment stays, and who is in it"
    assert [closed.full for closed in device.closed] == [[1, 2]]
    assert device.memory.evicted == [2]
    device.memory.admission.release(room)
    device.memory.check()
    device.others = 6 * BLOCK
    device.memory.admission.growth.given_back(device.closed[0])
    await device.agent("f", 60, 61)
    assert device.open_blocks == 8, "what was closed is opened again"
    assert device.memory.agents == "adef"


async def test_a_segment_is_not_opened_before_its_memory_is_given_back() -> None:
    device = Device(12 * BLOCK)
    await device.agent("a", 1, 2)
    await device.agent("b", 3, 4)
    device.memory.hot.drop(key("b"))
    device.others = 9 * BLOCK
    room = device.memory.admission.reserve_now(blocks(1, 1))
    assert room is not None and [closed.full for closed in device.closed] == [[1]]
    device.memory.admission.release(room)
    device.others = 0
    later = asyncio.create_task(device.memory.admission.reserve(blocks(10), 60))
    await settle()
    assert not later.done() and device.open_blocks == 8
    device.memory.admission.growth.given_back(device.closed[0])
    assert len((await later).blocks) == 10
    device.memory.admission.release(later.result())
    device.memory.check()


async def test_who_is_evicted_ahead_for_the_device_is_whom_the_turn_may_evict() -> None:
    device = Device(14 * BLOCK)
    for number, name in enumerate("abc"):
        await device.agent(name, 10 * number, 10 * number + 1)
    device.memory.hints.set({key("a"): 0, key("b"): 2, key("c"): 1, key("next"): 1})
    device.others = 9 * BLOCK
    room = device.memory.admission.reserve_now(blocks(2, 0, 1, of="next"))
    assert room is not None
    assert (device.memory.agents, [closed.full for closed in device.closed]) == ("ca", [[1]])
    device.memory.admission.release(room)
    device.others = 11 * BLOCK
    assert device.memory.admission.reserve_now(blocks(2, 0, 1, of="next")) is None, "c speaks as soon"
    assert device.memory.agents == "ca"
    device.memory.check()


async def test_nobody_goes_in_vain() -> None:
    """A turn waits though all its blocks are in the pool: others have taken what was promised to it."""
    device = Device(14 * BLOCK)
    for number, name in enumerate("abcde"):
        await device.agent(name, 10 * number, 10 * number + 1)
    device.others = 30 * BLOCK
    with pytest.raises(ResourceExhausted, match="0 B are left for the pool of KV; end other processes"):
        await device.memory.admission.reserve(blocks(2, 0, 1), 0)
    assert (device.memory.agents, device.closed) == ("abcde", [])
    device.memory.check()


async def test_nobody_goes_where_the_rest_is_not_theirs_to_give() -> None:
    """Six blocks are wanted, and eight are taken; but of these four are a running turn's, and two in the first segment.

    Agents went for the two that are left.
    """
    device = Device(14 * BLOCK)
    await device.agent("a", 1, 2)
    await device.agent("b", 3, 4)
    running = await device.memory.admission.reserve(blocks(4), 0)
    assert device.open_blocks == 8
    growth = device.memory.admission.growth
    assert growth.shrink(6 * BLOCK) == 0
    assert (device.memory.agents, device.closed) == ("ab", [])
    assert growth.shrink(2 * BLOCK) == 2 * BLOCK
    assert (device.memory.agents, device.closed) == ("a", [Closed([1], [], 2 * BLOCK)])
    device.memory.admission.release(running)
    device.memory.check()


async def test_a_turn_waits_until_others_leave_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_LOOK_SECONDS", 0.01)
    device = Device(10 * BLOCK, others=10 * BLOCK)
    waiting = enter(device.memory, blocks(3), LONG)
    await settle()
    assert not waiting.done()
    device.others = 0
    room = await asyncio.wait_for(waiting, 30)
    assert len(room.blocks) == 3
    device.memory.admission.release(room)


async def test_what_runs_keeps_what_it_was_promised() -> None:
    device = Device(10 * BLOCK)
    running = await device.memory.admission.reserve(blocks(4), 0)
    device.others = 9 * BLOCK
    with pytest.raises(ResourceExhausted, match="memory is taken"):
        await device.memory.admission.reserve(blocks(1), 0)
    assert len(running.blocks) == 4 and not device.closed
    device.memory.admission.release(running)
    device.others = 0
    device.memory.admission.release(await device.memory.admission.reserve(blocks(1), 0))


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), total=st.integers(6, 40), arrays=st.integers(0, 8))
def test_no_turn_gets_what_the_device_has_not_whatever_others_take(seed: int, total: int, arrays: int) -> None:
    dice = random.Random(seed)
    device = Device(total * 256)
    memory = device.memory = Memory(10, 4, arrays * BLOCK_TOKENS, (Segment(2, 256), Segment(3, 100)))
    memory.admission.spare = device.spare
    rooms: list[Reservation] = []
    prompts: list[list[int]] = []
    for step in range(30):
        if rooms and dice.random() < 0.5:
            at = dice.randrange(len(rooms))
            room, ids = rooms.pop(at), prompts.pop(at)
            if dice.random() < 0.7:
                memory.keep(dice.choice("abcd"), room, room.tokens, *ids)
            memory.admission.release(room)
        elif dice.random() < 0.3:
            device.others = dice.randrange(total * 256)
        else:
            count = dice.randrange(1, 5)
            ids = [dice.randrange(3) for _ in range(count)]
            request = blocks(count, *ids, of=dice.choice("abcd"))
            request = replace(request, checkpoints=dice.randrange(3), computes=dice.random() < 0.8)
            if (found := memory.admission.reserve_now(request)) is not None:
                assert device.spare() >= 0, step
                assert len(found.places) == count
                assert len(found.pieces) == 2 * (1 + found.checkpoints)
                rooms.append(found)
                prompts.append(ids)
        memory.check_budget()
        own = [Table(0, tuple(room.blocks), 0, tuple(room.pieces)) for room in rooms]
        memory.check(*own, *(pin for room in rooms for pin in room.pins))


async def test_what_is_free_is_given_back_before_anybody_goes() -> None:
    device = Device(12 * BLOCK)
    await device.agent("a", 1, 2)
    await device.agent("b", 3, 4)
    await device.agent("c", 5, 6)
    device.memory.hot.drop(key("b"))
    device.others = 7 * BLOCK
    room = await device.memory.admission.reserve(blocks(2, 1, 2), 0)
    assert (device.closed, device.memory.agents) == ([Closed([1], [], 2 * BLOCK)], "ac")
    device.memory.admission.release(room)
