"""Admission counts an agent's own state in the pool, and checkpoints that a turn would capture."""

import asyncio
from dataclasses import replace

import pytest

from agentmem.errors import ResourceExhausted
from inference_service.pool.blocks import Segment
from tests.inference_service.loop import settle

from .lodging import LONG, Memory, blocks, enter, key


async def test_two_agents_whose_own_states_fill_the_pool_both_go_on() -> None:
    """Each goes on from its own state. Neither's turn may wait for blocks that the other's turn holds for ever."""
    memory = Memory(6)
    memory.idle_agent("a", 1, 2, 3)
    memory.idle_agent("b", 4, 5, 6)

    async def turn(name: str, *ids: int) -> None:
        room = await memory.admission.reserve(blocks(len(ids) + 1, *ids), LONG)
        state = memory.hot.take(key(name))
        await settle()
        memory.keep(name, room, 1, *ids, 9)
        if state is not None:
            memory.pool.release(state.table)
        memory.admission.release(room)

    async with asyncio.timeout(30):
        await asyncio.gather(turn("a", 1, 2, 3), turn("b", 4, 5, 6))
    assert memory.admission.idle
    memory.check()
    assert len(memory.hot) == 1, "there is room for one of them"


async def test_an_agents_own_state_goes_if_its_turn_cannot_run_beside_it() -> None:
    memory = Memory(4)
    memory.idle_agent("a", 1, 2, 3)
    room = await memory.admission.reserve(blocks(4, 7, 8), 0)
    assert memory.hot.take(key("a")) is None
    memory.keep("a", room, 1024, 7, 8, 9, 10)
    memory.admission.release(room)
    memory.check()


async def test_checkpoints_that_are_not_captured_make_room_for_who_waits() -> None:
    memory = Memory(10, windows=5)
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert (room.checkpoints, len(room.pieces)) == (4, 10)
    waiting = enter(memory, replace(blocks(1, of="b"), checkpoints=4))
    await settle()
    assert not waiting.done(), "the first one may hold them"
    memory.admission.capture_at_most(room, 5)
    await settle()
    assert not waiting.done() and room.checkpoints == 4
    memory.admission.capture_at_most(room, 3)
    await settle()
    assert not waiting.done(), "it waits for memory for one of its own, besides a window"
    memory.admission.capture_at_most(room, 2)
    assert (await waiting).checkpoints == 1
    assert (room.checkpoints, len(room.pieces)) == (2, 6)
    for each in (room, waiting.result()):
        memory.admission.release(each)
    memory.check()
    assert memory.pool.pieces.free == 10


@pytest.mark.parametrize(("windows", "granted"), [(1, 0), (2, 1), (3, 2)])
async def test_a_turn_without_memory_for_checkpoints_runs_without(windows: int, granted: int) -> None:
    memory = Memory(10, windows=windows)
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert (room.checkpoints, len(room.pieces)) == (granted, 2 * (1 + granted))
    waiting = enter(memory, replace(blocks(1, of="b"), checkpoints=4))
    await settle()
    assert not waiting.done()
    memory.admission.release(room)
    assert (await waiting).checkpoints == granted, "as many as if it had come first"


async def test_no_turn_is_refused_because_of_a_checkpoint() -> None:
    memory = Memory(10, windows=2)
    room = await memory.admission.reserve(blocks(1), 0)
    waited = await memory.admission.reserve(replace(blocks(1, of="b"), checkpoints=1), 0.02)
    assert (waited.checkpoints, len(waited.pieces)) == (0, 2)
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(1, of="c"), 0.02)
    memory.admission.release(room)
    memory.admission.release(waited)
    memory.check()


async def test_an_agent_goes_for_a_window_and_one_checkpoint_and_for_no_more() -> None:
    memory = Memory(10, windows=4)
    for number, name in enumerate("abcd"):
        memory.idle_agent(name, number, windows=2)
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert (room.checkpoints, memory.agents, memory.evicted) == (1, "cd", [2])
    memory.admission.release(room)
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert (room.checkpoints, memory.agents) == (1, "cd"), "what is free is enough"
    memory.admission.release(room)
    memory.hot.drop(key("c"))
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert (room.checkpoints, memory.agents) == (2, "d"), "what is free is taken"
    memory.admission.release(room)
    memory.check()


@pytest.mark.parametrize(("windows", "granted"), [(2, 0), (3, 1), (4, 2)])
async def test_no_checkpoint_is_worth_the_window_that_the_agent_goes_on_from(windows: int, granted: int) -> None:
    memory = Memory(10, windows=windows)
    memory.idle_agent("a", 1, windows=2)
    room = await memory.admission.reserve(replace(blocks(2, 1, of="a"), checkpoints=2), 0)
    assert (room.checkpoints, memory.agents) == (granted, "a")
    memory.admission.release(room)
    room = await memory.admission.reserve(replace(blocks(2, of="b"), checkpoints=2), 0)
    assert (room.checkpoints, memory.agents) == ((1, "") if windows == 2 else (granted, "a")), "a stranger's may go"
    memory.admission.release(room)
    memory.check()


async def test_for_work_that_nobody_waits_for_no_checkpoint_is_taken_from_others() -> None:
    memory = Memory(10, windows=3)
    memory.idle_agent("a", 1, windows=2)
    room = memory.admission.reserve_now(replace(blocks(1, of="b"), computes=False))
    assert room is not None and (room.checkpoints, len(room.pieces), memory.agents) == (0, 2, "a")
    memory.admission.release(room)
    memory.check()


async def test_checkpoints_have_segments_opened_where_the_device_has_memory() -> None:
    """As far as it goes; who could not have one even alone does not wait for it."""
    for spare, granted, opened in ((100, 3, 8), (2, 1, 4), (1, 0, 2)):
        memory = Memory(10, windows=5, segments=(None, Segment(2, 1)))
        memory.admission.spare = lambda spare=spare, memory=memory: spare + 2 - memory.pool.pieces.open_bytes
        room = await memory.admission.reserve(replace(blocks(1), checkpoints=3), 0)
        assert (room.checkpoints, memory.pool.pieces.opened) == (granted, opened)
        memory.admission.release(room)
