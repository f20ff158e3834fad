"""Who may begin: room for all that a turn can grow to, made by evicting as few as it takes, in the order of arrival."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition, ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.kv import Table

from .lodging import LONG, Memory, blocks, enter, key, names, settle


async def test_a_room_is_all_that_the_turn_can_grow_to() -> None:
    memory = Memory(10, windows=2)
    room = await memory.admission.reserve(MemoryRequest(key("a"), (), 3 * BLOCK_TOKENS + 1, keeps=True), 0)
    assert (len(room.blocks), len(room.pieces), room.tokens) == (4, 2, 769)
    assert (memory.pool.full.free, memory.pool.pieces.free) == (6, 2)
    assert not memory.admission.idle
    memory.admission.release(room)
    assert memory.admission.idle
    memory.check()
    assert (memory.pool.full.free, memory.pool.pieces.free) == (10, 4)


async def test_a_table_takes_from_the_room_and_the_rest_goes_back() -> None:
    memory = Memory(10, windows=2)
    room = await memory.admission.reserve(blocks(4), 0)
    table = room.table(300, [None, None], 1, 44)
    assert (table.tokens, len(table.blocks), table.window_tokens, len(table.pieces)) == (300, 2, 44, 1)
    memory.admission.release(room)
    memory.check(table)
    assert (memory.pool.full.free, memory.pool.pieces.free) == (8, 3)


async def test_a_table_begins_with_what_is_shared() -> None:
    memory = Memory(10)
    state = memory.idle_agent("a", 1, 2)
    room = await memory.admission.reserve(blocks(4, 1, 2, 3), 0)
    memory.keep("b", room, 700, 1, 2, 3)
    memory.admission.release(room)
    [first, second] = memory.hot.tables()
    assert first.blocks == state.table.blocks == second.blocks[:2]
    assert memory.pool.full.free == 10 - 3
    memory.check()


async def test_blocks_of_the_prompt_that_are_in_the_pool_count_as_had_and_stay() -> None:
    memory = Memory(6)
    memory.idle_agent("a", 1, 2, 3)
    room = await memory.admission.reserve(blocks(5, 1, 2, 9, 3), 0)
    assert len(room.blocks) == 3, "the run of blocks ends where one is missing"
    memory.hot.drop(key("a"))
    assert [memory.pool.full.find(name) is not None for name in names(1, 2, 3)] == [True, True, False]
    memory.admission.release(room)
    memory.check()
    assert memory.pool.full.free == 6


@pytest.mark.parametrize(("tokens", "own"), [(2 * BLOCK_TOKENS, 0), (2 * BLOCK_TOKENS + 1, 1), (1, 1)])
async def test_blocks_behind_the_tokens_count_for_nothing(tokens: int, own: int) -> None:
    """The pool may have more of an agent's full blocks than can be restored; what is restored ends in a tail."""
    memory = Memory(6)
    memory.idle_agent("a", 1, 2, 3, 4)
    room = memory.admission.reserve_now(MemoryRequest(key("b"), names(1, 2, 3, 4), tokens, keeps=True))
    assert room is not None and len(room.blocks) == own
    assert memory.pool.full.used == 4 + own
    memory.admission.release(room)
    memory.check()


async def test_a_whole_pool_suffices_where_the_prompt_is_in_it() -> None:
    memory = Memory(4)
    memory.idle_agent("a", 1, 2, 3)
    room = await memory.admission.reserve(blocks(4, 1, 2, 3), 0)
    assert len(room.blocks) == 1
    assert memory.agents == "a"
    memory.keep("b", room, 1024, 1, 2, 3, 4)
    memory.admission.release(room)
    memory.check()


async def test_in_the_order_of_arrival() -> None:
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(3), 0)
    large, small = enter(memory, blocks(4)), enter(memory, blocks(1))
    await settle()
    assert not large.done()
    assert not small.done(), "one that would fit does not overtake, or the large one might wait for ever"
    memory.admission.release(running)
    room = await large
    await settle()
    assert not small.done()
    memory.admission.release(room)
    memory.admission.release(await small)
    assert memory.admission.idle


async def test_all_that_fit_enter_at_once() -> None:
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(4), 0)
    waiting = [enter(memory, blocks(2)), enter(memory, blocks(1)), enter(memory, blocks(1)), enter(memory, blocks(1))]
    await settle()
    memory.admission.release(running)
    await settle()
    assert [each.done() for each in waiting] == [True, True, True, False]
    memory.admission.release(waiting[0].result())
    await settle()
    assert waiting[3].done()
    for each in waiting[1:]:
        memory.admission.release(each.result())
    memory.check()


@pytest.mark.parametrize("patience", [0, 0.01, 2])
async def test_who_waited_in_vain_is_told_when_to_come_back(patience: float) -> None:
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(3), 0)
    with pytest.raises(ResourceExhausted, match="--pool-bytes") as refused:
        await memory.admission.reserve(blocks(2), patience)
    assert refused.value.retry_after == max(1.0, patience)
    memory.admission.release(running)
    assert memory.admission.idle
    room = await memory.admission.reserve(blocks(2), 0)
    memory.admission.release(room)
    memory.check()


async def test_one_that_gives_up_makes_way_for_the_next() -> None:
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(3), 0)
    first, second = enter(memory, blocks(2), 0.01), enter(memory, blocks(1))
    with pytest.raises(ResourceExhausted):
        await first
    memory.admission.release(await second)
    memory.admission.release(running)
    assert memory.admission.idle


async def test_a_waiter_that_is_cancelled_leaves_nothing_and_makes_way() -> None:
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(3), 0)
    first, second = enter(memory, blocks(2)), enter(memory, blocks(1))
    await settle()
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.done()
    memory.admission.release(running)
    memory.admission.release(second.result())
    assert memory.admission.idle
    memory.check()


async def test_cancelled_in_the_moment_when_there_is_room() -> None:
    """Whether the cancellation or the room was first, nobody has both."""
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(4), 0)
    waiting, next_one = enter(memory, blocks(4)), enter(memory, blocks(4))
    await settle()
    memory.admission.release(running)
    waiting.cancel()
    await settle()
    assert waiting.cancelled()
    memory.admission.release(await next_one)
    assert memory.admission.idle
    memory.check()


@pytest.mark.parametrize("keeps", [True, False])
async def test_what_never_fits_is_refused_at_once_and_without_effect(keeps: bool) -> None:
    memory = Memory(4, batch=BLOCK_TOKENS * 8)
    memory.idle_agent("a", 1, 2)
    running = await memory.admission.reserve(blocks(2), 0)
    waiting = enter(memory, blocks(4))
    await settle()
    with pytest.raises(FailedPrecondition, match="2304 tokens"):
        await memory.admission.reserve(blocks(9, keeps=keeps), LONG)
    if keeps:
        with pytest.raises(FailedPrecondition, match="1280 tokens"):
            await memory.admission.reserve(blocks(5), LONG)
    assert (memory.agents, memory.evicted, memory.pool.full.free) == ("a", [], 0)
    assert not waiting.done()
    memory.admission.release(running)
    memory.admission.release(await waiting)
    memory.check()


async def test_a_window_that_never_fits_is_refused() -> None:
    memory = Memory(4, windows=0)
    with pytest.raises(FailedPrecondition):
        await memory.admission.reserve(blocks(1), LONG)


async def test_the_padded_batch_is_charged() -> None:
    """So many rows times the longest: a long one makes short ones dear."""
    memory = Memory(100, batch=BLOCK_TOKENS * 12)
    rooms = [await memory.admission.reserve(blocks(2), 0) for _ in range(6)]
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(1), 0)
    for _ in range(4):
        memory.admission.release(rooms.pop())
    rooms.append(await memory.admission.reserve(blocks(4), 0))
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(1), 0)
    assert memory.pool.full.free > 50, "not for want of blocks"
    assert not memory.evicted
    memory.admission.release(rooms.pop())
    rooms.append(await memory.admission.reserve(blocks(1), 0))
    for room in rooms:
        memory.admission.release(room)


async def test_room_in_the_batch_alone_wakes_too() -> None:
    memory = Memory(100, batch=BLOCK_TOKENS)
    running = await memory.admission.reserve(blocks(1, keeps=False), 0)
    waiting = enter(memory, blocks(1, keeps=False))
    await settle()
    assert not waiting.done()
    memory.admission.release(running)
    memory.admission.release(await waiting)


async def test_a_turn_that_keeps_nothing_takes_no_blocks() -> None:
    memory = Memory(4, windows=1)
    memory.idle_agent("a", 1, 2, 3, windows=2)
    room = await memory.admission.reserve(blocks(100, 1, 2, keeps=False), 0)
    assert (room.blocks, room.pieces, memory.agents) == ([], [], "a")
    memory.hot.drop(key("a"))
    assert memory.pool.full.free == 2, "what it starts from stays while it runs"
    memory.admission.release(room)
    memory.check()
    assert memory.pool.full.free == 4


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 32),
    capacity=st.integers(1, 10),
    windows=st.none() | st.integers(1, 3),
    turns=st.integers(1, 14),
    batch=st.integers(2, 40),
)
def test_whoever_comes_goes_or_fails_nobody_waits_for_ever_and_all_adds_up(
    seed: int, capacity: int, windows: int | None, turns: int, batch: int
) -> None:
    asyncio.run(_arrivals(random.Random(seed), Memory(capacity, windows, batch * BLOCK_TOKENS), turns))


async def _arrivals(dice: random.Random, memory: Memory, turns: int) -> None:
    """Turns of four agents: some fail, some are cancelled, some keep nothing; a writer lets go of states later."""
    outcomes: list[str] = []
    locks = {name: asyncio.Lock() for name in "abcd"}
    written: list[Table] = []

    async def pause() -> None:
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)

    async def turn(name: str) -> None:
        await pause()
        ids = [dice.randrange(2) for _ in range(dice.randrange(1, 6))]
        demand = blocks(len(ids) + dice.randrange(3), *ids, keeps=dice.random() < 0.8, of=name)
        demand = replace(demand, checkpoints=dice.randrange(7))
        async with locks[name]:
            at_once = memory.admission.reserve_now(demand) if dice.random() < 0.2 else None
            room = at_once or await memory.admission.reserve(demand, LONG)
            memory.check_budget()
            had = memory.hot.take(key(name))
            kept = False
            try:
                for each in names(*ids):
                    if (block := memory.pool.full.find(each)) is not None:
                        pin = Table(0, (block,))
                        memory.pool.acquire(pin)
                        room.pins.append(pin)
                await pause()
                if dice.random() < 0.2:
                    raise ZeroDivisionError
                if demand.keeps:
                    longest = demand.tokens // BLOCK_TOKENS
                    memory.keep(name, room, 1, *[*ids, 2, 3][: dice.randrange(len(ids), longest + 1)])
                    kept = True
                    if (state := memory.hot.get(key(name))) is not None:
                        memory.pool.acquire(state.table)
                        written.append(state.table)
            finally:
                if had is not None:
                    if kept:
                        memory.pool.release(had.table)
                    else:
                        memory.hot.put(key(name), had)
                memory.admission.release(room)

    async def writer() -> None:
        while True:
            await pause()
            await asyncio.sleep(0)
            if written:
                memory.pool.release(written.pop(dice.randrange(len(written))))

    async def told(name: str) -> None:
        try:
            await turn(name)
            outcomes.append("done")
        except FailedPrecondition:
            outcomes.append("refused")
        except ZeroDivisionError:
            outcomes.append("failed")
        except asyncio.CancelledError:
            outcomes.append("cancelled")

    writing = asyncio.create_task(writer())
    tasks = [asyncio.create_task(told(dice.choice("abcd"))) for _ in range(turns)]
    for _ in range(turns * 3):
        await asyncio.sleep(0)
        if dice.random() < 0.1:
            dice.choice(tasks).cancel()
    for _ in range(20_000):
        if all(task.done() for task in tasks) and not written:
            break
        await asyncio.sleep(0)
    else:
        pytest.fail(f"somebody waits for ever: {outcomes}")
    writing.cancel()
    await asyncio.wait([writing])
    assert memory.admission.idle
    memory.check()
