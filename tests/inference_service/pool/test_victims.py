"""Who goes to make room for whom: as few as it takes, by hint and last use, and nobody in vain."""

import pytest

from agentmem.errors import FailedPrecondition, ResourceExhausted
from agentmem.kv.hints import HINT_SECONDS

from .lodging import Memory, blocks, enter, key, names, settle


async def test_the_fewest_agents_go_least_recently_used_first() -> None:
    memory = Memory(8)
    for number, name in enumerate("abcd"):
        memory.idle_agent(name, 10 * number, 10 * number + 1)
    room = await memory.admission.reserve(blocks(3), 0)
    assert (memory.agents, memory.evicted) == ("cd", [2])
    assert memory.pool.full.free == 1
    memory.admission.release(room)
    room = await memory.admission.reserve(blocks(4), 0)
    assert (memory.agents, memory.evicted) == ("cd", [2]), "nobody goes where there is room"
    memory.admission.release(room)


async def test_one_order_for_keys_and_tables_even_if_a_hint_ends_between() -> None:
    """The clock ticks with every look: what is freed must be reckoned of those who go."""
    memory = Memory(5)
    now = iter(range(1000))
    memory.hints._now = lambda: HINT_SECONDS / 2 * next(now)
    memory.hints.set({key("a"): 1})
    memory.idle_agent("a", 1)
    memory.idle_agent("b", 2, 3, 4, 5)
    room = await memory.admission.reserve(blocks(4), 0)
    assert (memory.agents, len(room.blocks), memory.pool.full.free) == ("a", 4, 0)
    memory.admission.release(room)
    memory.check()


async def test_an_agents_own_state_goes_after_all_others() -> None:
    """What it starts from is worth more to it than a stranger's, however long ago it spoke."""
    memory = Memory(6)
    memory.idle_agent("a", 1, 2)
    memory.idle_agent("b", 3, 4)
    memory.hints.set({key("a"): None})
    room = await memory.admission.reserve(blocks(4, of="a"), 0)
    assert memory.agents == "a"
    memory.admission.release(room)
    memory.check()


async def test_agents_whose_turns_wait_go_after_those_who_are_idle() -> None:
    memory = Memory(8)
    memory.idle_agent("a", 1, 2)
    memory.idle_agent("b", 3, 4)
    running = await memory.admission.reserve(blocks(4), 0)
    first, second = enter(memory, blocks(5)), enter(memory, blocks(6, 1, 2, of="a"))
    await settle()
    memory.admission.release(running)
    await settle()
    assert first.done() and memory.agents == "a", "whose turn is next; b was used later, and nobody wants it"
    memory.admission.release(await first)
    memory.admission.release(await second)
    memory.check()


async def test_a_turn_takes_from_those_who_wait_before_it_takes_from_itself() -> None:
    memory = Memory(8)
    memory.idle_agent("a", 1, 2)
    memory.idle_agent("b", 3, 4)
    running = await memory.admission.reserve(blocks(4), 0)
    first, second = enter(memory, blocks(7, 1, of="a")), enter(memory, blocks(6, 3, 4, of="b"))
    await settle()
    memory.admission.release(running)
    await settle()
    assert first.done() and memory.agents == "a"
    memory.admission.release(await first)
    memory.admission.release(await second)
    memory.check()


async def test_at_once_goes_who_speaks_later_and_nobody_else() -> None:
    memory = Memory(8)
    for number, name in enumerate("abcd"):
        memory.idle_agent(name, 10 * number, 10 * number + 1)
    memory.hints.set({key("a"): 0, key("b"): 2, key("c"): 1, key("d"): 3, key("next"): 1})
    assert memory.admission.reserve_now(blocks(5, of="next")) is None, "c speaks as soon, and a sooner"
    assert (memory.agents, memory.evicted) == ("dbca", [])
    room = memory.admission.reserve_now(blocks(4, of="next"))
    assert room is not None
    assert (memory.agents, len(room.blocks)) == ("ca", 4)
    memory.admission.release(room)
    memory.check()


async def test_at_once_overtakes_nobody_and_gives_up_nothing() -> None:
    memory = Memory(4)
    memory.admission.last_resort = lambda: pytest.fail("unwritten KV was given up for a prefetch")
    running = await memory.admission.reserve(blocks(3), 0)
    waiting = enter(memory, blocks(2))
    await settle()
    assert memory.admission.reserve_now(blocks(1)) is None, "there is room, and somebody was first"
    with pytest.raises(FailedPrecondition, match="1280 tokens"):
        memory.admission.reserve_now(blocks(5))
    waiting.cancel()
    await settle()
    assert memory.admission.reserve_now(blocks(2)) is None
    room = memory.admission.reserve_now(blocks(1))
    assert room is not None
    memory.admission.release(room)
    memory.admission.release(running)
    assert memory.admission.idle
    memory.check()


async def test_what_the_newcomer_shares_is_not_counted_as_freed() -> None:
    memory = Memory(6)
    memory.idle_agent("a", 1, 2)
    memory.idle_agent("b", 3, 4)
    memory.idle_agent("c", 5, 6)
    room = await memory.admission.reserve(blocks(4, 1, 2), 0)
    assert memory.agents == "ac", "the first would free nothing, so the second goes"
    assert (len(room.blocks), memory.pool.full.free) == (2, 0)
    memory.admission.release(room)
    memory.check()


async def test_agents_that_share_blocks_free_them_only_together() -> None:
    memory = Memory(5)
    memory.idle_agent("a", 1, 2)
    memory.idle_agent("b", 1, 3)
    memory.idle_agent("c", 1, 4)
    room = await memory.admission.reserve(blocks(4), 0)
    assert (memory.agents, memory.evicted, memory.pool.full.free) == ("", [3], 1)
    memory.admission.release(room)
    assert memory.pool.full.free == 5


async def test_windows_are_room_too() -> None:
    memory = Memory(20, windows=2)
    memory.idle_agent("a", 1, windows=2)
    memory.idle_agent("b", 2, windows=2)
    room = await memory.admission.reserve(blocks(1), 0)
    assert memory.agents == "b"
    assert len(room.pieces) == 2
    memory.admission.release(room)


async def test_nobody_goes_where_all_would_not_be_enough() -> None:
    memory = Memory(6)
    memory.idle_agent("a", 1, 2)
    running = await memory.admission.reserve(blocks(2), 0)
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(5), 0)
    assert (memory.agents, memory.evicted) == ("a", [])
    memory.admission.release(running)


async def test_what_is_in_flight_is_not_evicted() -> None:
    memory = Memory(6)
    memory.idle_agent("a", 1, 2, 3)
    taken = memory.hot.take(key("a"))
    assert taken is not None
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(4), 0)
    assert [memory.pool.full.find(name) for name in names(1, 2, 3)] == list(taken.table.blocks)
    memory.hot.put(key("a"), taken)
    room = await memory.admission.reserve(blocks(4), 0)
    assert memory.agents == ""
    memory.admission.release(room)


async def test_what_the_writer_holds_is_not_free_before_it_lets_go() -> None:
    memory = Memory(4)
    table = memory.idle_agent("a", 1, 2).table
    memory.pool.acquire(table)
    waiting = enter(memory, blocks(3))
    await settle()
    assert not waiting.done()
    assert memory.agents == "a", "nobody goes in vain"
    memory.pool.release(table)
    room = await waiting
    assert memory.agents == ""
    memory.admission.release(room)
    memory.check()


async def test_who_is_being_written_stays_where_another_makes_room() -> None:
    """As the one who spoke just now, and by its hint is the farthest."""
    memory = Memory(6)
    table = memory.idle_agent("a", 1, 2).table
    memory.idle_agent("b", 3, 4)
    memory.idle_agent("c", 5, 6)
    memory.pool.acquire(table)
    memory.hints.set({key("a"): 3, key("b"): 2, key("c"): 1})
    room = await memory.admission.reserve(blocks(2), 0)
    assert (memory.agents, memory.evicted) == ("ac", [1])
    memory.admission.release(room)
    memory.pool.release(table)
    memory.check()
