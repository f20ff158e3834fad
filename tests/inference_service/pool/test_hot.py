"""Idle agents' hot states: their order, and the references that they hold."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.pool.hot import HotAgents, HotState, Leftover
from inference_service.pool.kv import KVPool, Space, Table


def key(name: str) -> AgentKey:
    return AgentKey("ns", name, "model")


def state(pool: KVPool, blocks: int = 1, pieces: int = 0) -> HotState:
    table = Table(256 * blocks, tuple(pool.full.allocate(blocks)), 0, tuple(pool.pieces.allocate(pieces)))
    return HotState(Version("u", 1), Ledger(), table)


@pytest.fixture
def pool() -> KVPool:
    return KVPool(Space(16, 16), 2)


@pytest.fixture
def hot(pool: KVPool) -> HotAgents:
    return HotAgents(pool, TurnHints())


steps = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["put", "take", "drop"])), max_size=30)


@given(steps=steps)
def test_against_a_dictionary(steps: list[tuple[str, str]]) -> None:
    pool = KVPool(Space(64))
    hot, model = HotAgents(pool, TurnHints()), OrderedDict[AgentKey, HotState]()
    taken: list[Table] = []
    for name, step in steps:
        if step == "put":
            new = state(pool)
            hot.put(key(name), new)
            model.pop(key(name), None)
            model[key(name)] = new
        elif step == "take":
            found = hot.take(key(name))
            assert found is model.pop(key(name), None)
            if found is not None:
                taken.append(found.table)
        else:
            hot.drop(key(name))
            model.pop(key(name), None)
        for each in map(key, "abcd"):
            assert hot.get(each) is model.get(each)
            assert (each in hot) == (each in model)
        assert list(hot) == list(model) and len(hot) == len(model)
        assert hot.tables() == [each.table for each in model.values()]
        pool.check_integrity([*hot.tables(), *taken])


def test_hints_come_before_the_last_use(pool: KVPool) -> None:
    hints = TurnHints()
    hot = HotAgents(pool, hints)
    states = {name: state(pool) for name in "abcd"}
    for name, each in states.items():
        hot.put(key(name), each)
    hints.set({key("a"): 1, key("b"): 7, key("d"): None})
    assert list(hot) == [key(name) for name in "dcba"]
    assert hot.tables(hot) == [states[name].table for name in "dcba"]
    hot.touch(key("c"))
    hints.forget(key("a"), hints.of(key("a")))
    assert list(hot) == [key(name) for name in "dacb"]


def test_for_an_agent_goes_who_goes_before_it(pool: KVPool) -> None:
    hints = TurnHints()
    hot = HotAgents(pool, hints)
    for name in "abcd":
        hot.put(key(name), state(pool))
    hints.set({key("a"): 1, key("b"): 7, key("d"): None, key("next"): 2})
    assert hot.evictable_before(key("next")) == [key(name) for name in "dcb"]
    assert hot.evictable_before(key("nobody")) == [key(name) for name in "dc"]
    assert hot.evictable_before(key("a")) == [key(name) for name in "dcb"], "who is here does not go for itself"


def left(pool: KVPool, blocks: int) -> Table:
    return Table(256 * blocks, tuple(pool.full.allocate(blocks)))


def test_leftovers_are_evicted_first_and_are_no_agents(pool: KVPool, hot: HotAgents) -> None:
    hot.put(key("a"), state(pool))
    hot.leave(key("b"), left(pool, 2), listed=True)
    hot.leave(key("c"), left(pool, 3), listed=True)
    assert [each.key if isinstance(each, Leftover) else each for each in hot] == [key("b"), key("c"), key("a")]
    assert list(hot)[:2] == hot.evictable_before(key("b"))[:2]
    assert len(hot) == 1
    assert key("b") not in hot
    assert [len(table.blocks) for table in hot.tables()] == [2, 3, 1]
    for each in list(hot):
        hot.drop(each)
    assert pool.full.used == 0


def test_a_leftover_is_replaced_by_what_has_all_of_it(pool: KVPool, hot: HotAgents) -> None:
    short = left(pool, 2)
    longer = Table(1024, (*short.blocks, *pool.full.allocate(2)))
    pool.full.acquire(short.blocks)
    hot.leave(key("a"), short, listed=True)
    hot.leave(key("b"), left(pool, 1), listed=True)
    hot.leave(key("a"), longer, listed=True)
    assert [table.tokens for table in hot.tables()] == [256, 1024]
    pool.acquire(longer)
    hot.put(key("a"), HotState(Version("u", 1), Ledger(), longer))
    assert [table.tokens for table in hot.tables()] == [256, 1024]
    assert len(hot) == 1
    pool.check_integrity(hot.tables())


@pytest.mark.parametrize(("version", "left"), [(Version("u", 1), 0), (Version("u", 2), 1), (Version("other", 2), 0)])
def test_kv_of_an_earlier_version_is_left_over(pool: KVPool, hot: HotAgents, version: Version, left: int) -> None:
    """And not that of another agent of that name, which was deleted."""
    before = state(pool)
    hot.put(key("a"), before)
    present = version == before.version
    assert hot.present(key("a"), version) is (before if present else None)
    assert (key("a") in hot, len(list(hot)) - present) == (present, left)
    pool.check_integrity(hot.tables())


@pytest.mark.parametrize("erase", [False, True], ids=["evicted", "deleted"])
def test_leftovers_go_with_their_agent(pool: KVPool, hot: HotAgents, erase: bool) -> None:
    """With a deleted one go those of agents of its namespace that are in no list."""
    for name, listed in (("a", True), ("listed", True), ("unlisted", False)):
        hot.leave(key(name), left(pool, 1), listed=listed)
    elsewhere = AgentKey("other", "unlisted", "model")
    hot.leave(elsewhere, left(pool, 1), listed=False)
    hot.put(key("a"), state(pool))
    (hot.erase if erase else hot.forget)(key("a"))
    stays = [key("listed"), *([] if erase else [key("unlisted")]), elsewhere]
    assert [each.key for each in hot if isinstance(each, Leftover)] == stays
    assert key("a") not in hot
