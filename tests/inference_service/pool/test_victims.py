"""As few go to make room as it takes, by hint and last use, and nobody in vain."""

import pytest

from agentmem.errors import FailedPrecondition, ResourceExhausted
from agentmem.kv.hints import HINT_SECONDS
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.kv import Table
from tests.inference_service.loop import settle

from .lodging import Memory, blocks, enter, key, names


@pytest.mark.parametrize(
    ("capacity", "agents", "hints", "request_", "left"),
    [
        pytest.param(8, "01 23 45 67", {}, blocks(3), "cd", id="the fewest, least recently used first"),
        pytest.param(8, "01 23 45", {}, blocks(2), "abc", id="nobody where there is room"),
        pytest.param(6, "12 34", {"a": None}, blocks(4, of="a"), "a", id="its own after all others, whatever the hint"),
        pytest.param(6, "12 34 56", {}, blocks(4, 1, 2), "ac", id="nobody who would free nothing, as what is shared"),
        pytest.param(5, "12 13 14", {}, blocks(4), "", id="those who share blocks, together"),
    ],
)
async def test_who_goes(
    capacity: int, agents: str, hints: dict[str, int | None], request_: MemoryRequest, left: str
) -> None:
    """Agents are named in the order of their last use, by the tokens that their blocks hold."""
    memory = Memory(capacity)
    for name, ids in zip("abcd", agents.split(), strict=False):
        memory.idle_agent(name, *map(int, ids))
    memory.hints.set({key(name): hint for name, hint in hints.items()})
    before = len(memory.agents)
    room = await memory.admission.reserve(request_, 0)
    assert (memory.agents, sum(memory.evicted)) == (left, before - len(left))
    memory.check(*room.pins, Table(0, tuple(room.blocks)))
    memory.admission.release(room)
    memory.check()


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


@pytest.mark.parametrize(
    "first",
    [blocks(5), blocks(7, 1, of="a")],
    ids=["b was used later, and nobody wants it", "one that waits too, before its own"],
)
async def test_who_waits_keeps_its_state_longest(first: MemoryRequest) -> None:
    memory = Memory(8)
    memory.idle_agent("a", 1, 2)
    memory.idle_agent("b", 3, 4)
    running = await memory.admission.reserve(blocks(4), 0)
    of, ids = ("b", (3, 4)) if first.key == key("a") else ("a", (1, 2))
    waiting = [enter(memory, first), enter(memory, blocks(6, *ids, of=of))]
    await settle()
    memory.admission.release(running)
    await settle()
    assert waiting[0].done() and memory.agents == "a"
    for each in waiting:
        memory.admission.release(await each)
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


async def test_what_is_in_flight_or_being_written_stays() -> None:
    """Nobody goes in vain, and of two who are wanted by hint, the one goes that is not being written."""
    memory = Memory(6)
    for name, ids in (("a", (1, 2)), ("b", (3, 4)), ("c", (5, 6))):
        memory.idle_agent(name, *ids)
    memory.hints.set({key("a"): 3, key("b"): 2, key("c"): 1})
    writing, running = memory.hot.get(key("a")), memory.hot.take(key("c"))
    assert writing is not None and running is not None
    memory.pool.acquire(writing.table)
    with pytest.raises(ResourceExhausted):
        await memory.admission.reserve(blocks(3), 0)
    assert (memory.agents, memory.evicted) == ("ab", [])
    room = await memory.admission.reserve(blocks(2), 0)
    assert (memory.agents, memory.evicted) == ("a", [1])
    assert [memory.pool.full.find(name) for name in names(5, 6)] == list(running.table.blocks)
    memory.check(writing.table, running.table, Table(0, tuple(room.blocks)))
