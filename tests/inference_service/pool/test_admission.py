"""A turn begins with room for all that it can grow to, by as few evictions as it takes, in order of arrival."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition, ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.pool.admission import MemoryRequest, Reservation
from inference_service.pool.kv import Table
from tests.inference_service.loop import settle

from .lodging import LONG, Memory, blocks, enter, key, names


async def test_a_room_is_all_that_the_turn_can_grow_to() -> None:
    memory = Memory(10, windows=2)
    room = await memory.admission.reserve(MemoryRequest(key("a"), (), 3 * BLOCK_TOKENS + 1), 0)
    assert (len(room.blocks), len(room.pieces), room.tokens) == (4, 2, 769)
    assert (list(room.places), room.shared) == (room.blocks, ())
    assert (memory.pool.full.free, memory.pool.pieces.free) == (6, 2)
    assert not memory.admission.idle
    memory.admission.release(room)
    assert memory.admission.idle
    memory.check()
    assert (memory.pool.full.free, memory.pool.pieces.free) == (10, 4)


async def test_who_claims_gets_references_on_what_is_others() -> None:
    """Its own blocks and pieces go along, once; those of others, and its own that are claimed again, are shared."""
    memory = Memory(10, windows=4)
    state = memory.idle_agent("a", 1, 2, windows=2)
    room = await memory.admission.reserve(replace(blocks(4, 1, 2), checkpoints=1), 0)
    assert room.shared == state.table.blocks == room.places[:2]
    own = room.places[2]
    first = room.claim(memory.pool, Table(700, room.places[:3], 9, (*state.table.pieces, room.pieces[0])))
    second = room.claim(memory.pool, Table(701, room.places[:3], 9, (first.pieces[-1], room.pieces[0])))
    assert (len(room.blocks), len(room.pieces), own in room.blocks) == (1, 2, False)
    memory.admission.release(room)
    memory.check(first, second)
    memory.hot.drop(key("a"))
    memory.pool.release(first)
    memory.check(second)
    assert (memory.pool.full.used, memory.pool.pieces.used) == (3, 2)
    memory.pool.release(second)
    assert (memory.pool.full.used, memory.pool.pieces.used) == (0, 0)


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
    room = memory.admission.reserve_now(MemoryRequest(key("b"), names(1, 2, 3, 4), tokens))
    assert room is not None and len(room.blocks) == own
    assert memory.pool.full.used == 4 + own
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


@pytest.mark.parametrize("patience", [0.01, LONG], ids=["gives up", "is cancelled"])
async def test_who_no_longer_waits_makes_way_for_the_next(patience: float) -> None:
    memory = Memory(4)
    running = await memory.admission.reserve(blocks(3), 0)
    first, second = enter(memory, blocks(2), patience), enter(memory, blocks(1))
    await settle()
    if patience == LONG:
        first.cancel()
    with pytest.raises((ResourceExhausted, asyncio.CancelledError)):
        await first
    memory.admission.release(await second)
    memory.admission.release(running)
    assert memory.admission.idle
    memory.check()


async def test_cancelled_in_the_moment_when_there_is_room() -> None:
    """In either order of cancellation and room, nobody has both."""
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


async def test_what_never_fits_is_refused_at_once_and_without_effect() -> None:
    memory = Memory(4)
    memory.idle_agent("a", 1, 2)
    running = await memory.admission.reserve(blocks(2), 0)
    waiting = enter(memory, blocks(4))
    await settle()
    for least in (replace(blocks(5), computes=False), blocks(5)):
        with pytest.raises(FailedPrecondition, match="1280 tokens"):
            await memory.admission.reserve(least, LONG)
    assert (memory.agents, memory.evicted, memory.pool.full.free) == ("a", [], 0)
    assert not waiting.done()
    memory.admission.release(running)
    memory.admission.release(await waiting)
    memory.check()


async def test_arrays_are_granted_as_far_as_their_budget_goes() -> None:
    """A request that gets none runs all the same, and nobody is refused or evicted for their sake."""
    memory = Memory(20, arrays=5 * BLOCK_TOKENS)
    memory.idle_agent("a", 1, 2)
    rooms = [await memory.admission.reserve(blocks(count), 0) for count in (2, 3, 1, 6)]
    assert [room.array_bytes for room in rooms] == [512, 768, 0, 0]
    assert memory.admission.promised_bytes == 1280
    memory.check_budget()
    memory.admission.release(rooms.pop(0))
    rooms.append(await memory.admission.reserve(blocks(1), 0))
    assert rooms[-1].array_bytes == 256
    assert [room.array_bytes for room in rooms[:-1]] == [768, 0, 0], "a turn keeps what it began with"
    for room in rooms:
        memory.admission.release(room)
    assert (memory.admission.promised_bytes, memory.agents) == (0, "a")


async def test_a_prefetch_takes_no_arrays() -> None:
    memory = Memory(4, arrays=BLOCK_TOKENS)
    prefetch = memory.admission.reserve_now(replace(blocks(1), computes=False))
    assert prefetch is not None and (prefetch.array_bytes, len(prefetch.blocks)) == (0, 1)
    turn = await memory.admission.reserve(blocks(1), 0)
    assert turn.array_bytes == BLOCK_TOKENS, "which are the turn's"
    for room in (prefetch, turn):
        memory.admission.release(room)
    memory.check()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 32),
    capacity=st.integers(1, 10),
    windows=st.none() | st.integers(1, 3),
    turns=st.integers(1, 14),
    arrays=st.integers(0, 20),
)
def test_whoever_comes_goes_or_fails_nobody_waits_for_ever_and_all_adds_up(
    seed: int, capacity: int, windows: int | None, turns: int, arrays: int
) -> None:
    asyncio.run(_arrivals(random.Random(seed), Memory(capacity, windows, arrays * BLOCK_TOKENS), turns))


def _captured(memory: Memory, room: Reservation, names: list[bytes]) -> list[Table]:
    """Checkpoints of a turn, which has pieces for so many and for a window besides."""
    found, last = [], list[int]()
    for position in range(room.checkpoints):
        pieces = *last, *room.pieces[2 : 4 - len(last)]
        table = room.claim(memory.pool, Table(position, (), 1, pieces))
        assert len(room.pieces) >= 2
        last = [pieces[-1]]
        found.append(memory.pool.publish_checkpoint(names[position % len(names)], table))
    return found


async def _arrivals(dice: random.Random, memory: Memory, turns: int) -> None:
    """Turns of four agents: some fail, some are cancelled, some keep nothing; a writer lets go of states later.

    They capture checkpoints, each of which has a piece of the one before.
    """
    outcomes: list[str] = []
    locks = {name: asyncio.Lock() for name in "abcd"}
    written: list[Table] = []

    async def pause() -> None:
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)

    async def turn(name: str) -> None:
        await pause()
        ids = [dice.randrange(2) for _ in range(dice.randrange(1, 6))]
        demand = blocks(len(ids) + dice.randrange(3), *ids, of=name)
        demand = replace(demand, checkpoints=dice.randrange(7), computes=dice.random() < 0.9)
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
                memory.admission.capture_at_most(room, dice.randrange(7))
                written.extend(_captured(memory, room, names(*ids)))
                if dice.random() < 0.8:
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
