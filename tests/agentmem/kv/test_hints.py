"""Turn hints: who is evicted first, how long a hint holds, whom it concerns, and what is refused."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from agentmem.kv import hints as module
from agentmem.kv.hints import HINT_SECONDS, TurnHints, from_request
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.validation import AgentKey

NAMES = ("unknown", "far", "near", "never", "other")


def key(name: str, namespace: str = "n") -> AgentKey:
    return AgentKey(namespace, name, "m")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def order(hints: TurnHints) -> list[str]:
    return [each.agent_id for each in hints.order(map(key, NAMES))]


def forget(hints: TurnHints, name: str) -> None:
    hints.forget(key(name), hints.of(key(name)))


def test_who_never_speaks_again_goes_first_and_who_speaks_next_last() -> None:
    hints = TurnHints()
    hints.set({key("far"): 9, key("near"): 0, key("never"): None})
    assert order(hints) == ["never", "unknown", "other", "far", "near"]
    assert [hints.is_over(key(name)) for name in ("never", "unknown", "near")] == [True, False, False]
    hints.set({key("near"): 10})
    assert order(hints) == ["never", "unknown", "other", "near", "far"], "hints of others stay"
    forget(hints, "near")
    forget(hints, "unheard of")
    assert order(hints) == ["never", "unknown", "near", "other", "far"]


def test_a_turn_ends_the_hint_that_stood_when_it_began_and_no_other() -> None:
    hints = TurnHints()
    hints.set({key("near"): 0})
    began = hints.of(key("near"))
    hints.set({key("near"): 0})
    hints.forget(key("near"), began)
    assert order(hints)[-1] == "near", "the same was said again meanwhile, of the turn after"
    hints.forget(key("near"), None)
    assert order(hints)[-1] == "near"
    forget(hints, "near")
    assert order(hints) == list(NAMES)


def test_a_hint_ends() -> None:
    clock = Clock()
    hints = TurnHints(clock)
    hints.set({key("never"): None})
    clock.now = HINT_SECONDS - 1
    hints.set({key("far"): 9})
    assert order(hints) == ["never", "unknown", "near", "other", "far"]
    clock.now += 2
    assert order(hints) == ["unknown", "near", "never", "other", "far"]
    clock.now += HINT_SECONDS
    assert order(hints) == list(NAMES)


def test_a_namespace_keeps_its_newest_hints_and_takes_none_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMESPACE_HINTS", 3)
    clock = Clock()
    hints = TurnHints(clock)
    hints.set({key("far", "other"): 1})
    for number in range(5):
        hints.set({key(str(number)): 1, key("again"): 1})
    assert [hints.of(key(str(number))) is not None for number in range(5)] == [False, False, False, True, True]
    assert hints.of(key("again")), "what was said again is not old"
    assert hints.of(key("far", "other"))
    clock.now = HINT_SECONDS
    hints.set({key("new", "third"): 1})
    assert hints._hints.keys() == {"third"}, "what has ended takes no memory, whoever said it"


def test_a_request_costs_what_it_says_and_not_what_is_there() -> None:
    """10,000 hints that hold are neither copied nor looked through when another is set."""
    hints = TurnHints()
    hints.set({key(str(number)): number for number in range(10_000)})
    held = hints._hints["n"]
    hints.set({key("0"): 7})
    assert hints._hints["n"] is held and len(held) == 10_000


def test_who_speaks_as_soon_does_not_yield() -> None:
    hints = TurnHints()
    keys = [*map(key, NAMES), key("a", "x")]
    hints.set({key("far"): 9, key("near"): 1, key("never"): None, key("next"): 1})
    evictable_before = hints.evictable_before(keys, key("next"))
    assert evictable_before == [key("never"), key("unknown"), key("other"), key("far"), key("a", "x")]
    forget(hints, "next")
    evictable_before = hints.evictable_before([*keys, key("next")], key("next"))
    assert evictable_before == [key("never"), key("unknown"), key("other")], (
        "of what nobody has said, the last use decides"
    )


keys = st.builds(key, st.sampled_from("abcde"), st.sampled_from(["x", "y", "z"]))


@given(
    by_use=st.lists(keys, unique=True),
    said=st.dictionaries(keys, st.none() | st.integers(0, 3)),
)
def test_hints_change_the_order_of_a_namespaces_own_agents_and_nobody_elses(
    by_use: list[AgentKey], said: dict[AgentKey, int | None]
) -> None:
    hints = TurnHints()
    hints.set(said)
    ordered = hints.order(by_use)
    assert sorted(ordered) == sorted(by_use)
    assert [each.namespace for each in ordered] == [each.namespace for each in by_use]
    for namespace in "xyz":
        own = [each for each in ordered if each.namespace == namespace]
        assert own == sorted([each for each in by_use if each.namespace == namespace], key=lambda k: _rank(said, k))
    for each in by_use:
        evictable_before = hints.evictable_before(by_use, each)
        assert each not in evictable_before and set(evictable_before) <= set(by_use)
        soon = said.get(each)
        if soon is not None:
            assert all(said.get(k, 9) != soon for k in evictable_before if k.namespace == each.namespace)


def _rank(said: dict[AgentKey, int | None], each: AgentKey) -> tuple[int, int]:
    if each not in said:
        return 1, 0
    steps = said[each]
    return (0, 0) if steps is None else (2, -steps)


def misses(schedule: Sequence[str], capacity: int, *, hinted: bool) -> int:
    """Turns, after each agent's first, whose agent was evicted from a pool that holds so many agents."""
    hints = TurnHints()
    pool: list[AgentKey] = []
    missed = 0
    for turn, name in enumerate(schedule):
        speaker = key(name)
        missed += speaker not in pool and name in schedule[:turn]
        pool = [each for each in pool if each != speaker]
        while len(pool) >= capacity:
            pool.remove(hints.order(pool)[0])
        pool.append(speaker)
        forget(hints, name)
        if hinted:
            rest = schedule[turn + 1 :]
            hints.set({key(each): rest.index(each) if each in rest else None for each in set(schedule)})
    return missed


def optimal_misses(schedule: Sequence[str], capacity: int) -> int:
    """The fewest that any order of eviction could have: Belady's, which knows what comes and takes the farthest."""
    pool: set[str] = set()
    missed = 0
    for turn, name in enumerate(schedule):
        if name not in pool:
            missed += name in schedule[:turn]
            rest = schedule[turn + 1 :]
            while len(pool) >= capacity:
                pool.remove(max(pool, key=lambda each: rest.index(each) if each in rest else len(rest) + 1))
            pool.add(name)
    return missed


@given(schedule=st.text("abcdef", max_size=60), capacity=st.integers(1, 5))
def test_hints_miss_no_more_than_must_be(schedule: str, capacity: int) -> None:
    assert misses(schedule, capacity, hinted=True) == optimal_misses(schedule, capacity)


def test_a_request_is_checked() -> None:
    hint = agent_pb2.TurnHint(key=key("a").to_proto(), steps=0)
    never = agent_pb2.TurnHint(key=key("b").to_proto())
    assert from_request(agent_pb2.SetTurnHintsRequest(hints=[hint, never])) == {key("a"): 0, key("b"): None}
    nobody = agent_pb2.TurnHint(key=types_pb2.AgentKey(namespace="n", model_id="m"))
    with pytest.raises(InvalidArgument) as error:
        from_request(agent_pb2.SetTurnHintsRequest(hints=[hint, nobody]))
    assert error.value.field == "hints[1].key.agent_id"
