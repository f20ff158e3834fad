from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.keys import AgentKey
from inference_service.hot import HotAgents, HotState
from inference_service.memory.ledger import Ledger, Version


@dataclass
class Sized:
    """A cache as far as hot agents look at it."""

    nbytes: int


def key(name: str) -> AgentKey:
    return AgentKey("ns", name, "model")


def state(*sizes: int) -> HotState:
    return HotState(Version("u", 1), Ledger(), cast(Any, [Sized(size) for size in sizes]))


def test_what_was_put_is_found_until_it_is_dropped() -> None:
    hot = HotAgents(100)
    kept = state(10, 20)
    assert hot.put(key("a"), kept) == []
    assert hot.get(key("a")) is kept
    assert key("a") in hot
    assert (len(hot), hot.nbytes, kept.nbytes) == (1, 30, 30)
    hot.drop(key("a"))
    hot.drop(key("a"))
    assert hot.get(key("a")) is None
    assert key("a") not in hot
    assert (len(hot), hot.nbytes) == (0, 0)


@pytest.mark.parametrize("other", [AgentKey("x", "a", "model"), AgentKey("ns", "a", "x"), AgentKey("ns", "x", "model")])
def test_keys_are_compared_whole(other: AgentKey) -> None:
    hot = HotAgents(100)
    hot.put(key("a"), state(10))
    assert hot.get(other) is None
    assert other not in hot


def test_least_recently_put_goes_first() -> None:
    hot = HotAgents(100)
    for name in "abc":
        assert hot.put(key(name), state(30)) == []
    assert hot.put(key("d"), state(60)) == [key("a"), key("b")]
    assert hot.nbytes == 90


def test_putting_again_makes_it_the_most_recent() -> None:
    hot = HotAgents(100)
    for name in "abc":
        hot.put(key(name), state(30))
    assert hot.put(key("a"), state(60)) == [key("b")], "the state that was just put is not the one to drop"
    assert key("a") in hot


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    hot = HotAgents(100)
    hot.put(key("a"), state(10))
    assert hot.put(key("b"), state(1000)) == [key("a"), key("b")]
    assert (len(hot), hot.nbytes) == (0, 0)
    assert HotAgents(0).put(key("c"), state(10)) == [key("c")]


@dataclass
class Model:
    """Least recently put first."""

    limit: int
    order: list[tuple[str, int]] = field(default_factory=list)

    def put(self, name: str, size: int) -> list[str]:
        self.order = [(n, s) for n, s in self.order if n != name] + [(name, size)]
        dropped = []
        while sum(s for _, s in self.order) > self.limit:
            dropped.append(self.order.pop(0)[0])
        return dropped

    def drop(self, name: str) -> None:
        self.order = [(n, s) for n, s in self.order if n != name]


steps = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 60)), max_size=20)


@given(steps=steps)
def test_against_a_list(steps: list[tuple[str, int | None]]) -> None:
    hot, model = HotAgents(100), Model(100)
    for name, size in steps:
        if size is None:
            hot.drop(key(name))
            model.drop(name)
        else:
            assert hot.put(key(name), state(size)) == [key(n) for n in model.put(name, size)]
        assert len(hot) == len(model.order)
        assert hot.nbytes == sum(s for _, s in model.order)
        assert all(key(n) in hot for n, _ in model.order)
