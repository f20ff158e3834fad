"""Who may begin where an agent has a state of its own in the pool, or a turn would capture checkpoints."""

import asyncio
from dataclasses import replace

import pytest

from agentmem.errors import ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS

from .lodging import LONG, Memory, blocks, enter, key, settle


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
    memory = Memory(10, batch=3 * BLOCK_TOKENS)
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert room.checkpoints == 2, "what one row leaves"
    waiting = enter(memory, replace(blocks(1, of="b"), checkpoints=4))
    await settle()
    assert not waiting.done(), "the first one may hold them"
    memory.admission.capture_at_most(room, 3)
    await settle()
    assert not waiting.done() and room.checkpoints == 2
    memory.admission.capture_at_most(room, 1)
    await settle()
    assert not waiting.done(), "it waits for memory for one of its own"
    memory.admission.capture_at_most(room, 0)
    assert (await waiting).checkpoints == 1
    memory.check_budget()


@pytest.mark.parametrize(("batch", "granted"), [(1, 0), (2, 1), (3, 2)])
async def test_a_turn_without_memory_for_checkpoints_runs_without(batch: int, granted: int) -> None:
    memory = Memory(10, batch=batch * BLOCK_TOKENS)
    room = await memory.admission.reserve(replace(blocks(1), checkpoints=4), 0)
    assert room.checkpoints == granted
    waiting = enter(memory, replace(blocks(1, of="b"), checkpoints=4))
    await settle()
    assert not waiting.done()
    memory.admission.release(room)
    assert (await waiting).checkpoints == granted, "as many as if it had come first"


async def test_no_turn_is_refused_because_of_a_checkpoint() -> None:
    memory = Memory(10, batch=2 * BLOCK_TOKENS)
    room = await memory.admission.reserve(blocks(1), 0)
    waited = await memory.admission.reserve(replace(blocks(1, of="b"), checkpoints=1), 0.02)
    assert waited.checkpoints == 0
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(1, of="c"), 0.02)
    memory.admission.release(room)
    memory.check_budget()
