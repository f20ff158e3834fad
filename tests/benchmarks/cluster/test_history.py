"""The check of histories: it accepts what one ledger can have shown, and finds each way in which it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster.history import Append, Kind, Operation, Outcome, Read, violations


class Recorded(NamedTuple):
    """A history, and the lists that it ended with."""

    operations: list[Operation]
    final: dict[str, tuple[str, ...]]


AGENTS = "ab"
moments = st.integers(0, 30)


@st.composite
def recorded(draw: st.DrawFn) -> Recorded:
    """By a model that is right: each operation takes effect at one moment between its beginning and its end."""
    effects: list[tuple[int, int, Operation, bool]] = []
    for number in range(draw(st.integers(0, 14))):
        began, until, after = draw(st.tuples(moments, st.integers(0, 4), st.integers(0, 4)))
        effect, ended = began + until, began + until + after
        agent, request_id = draw(st.sampled_from(AGENTS)), f"r{number}"
        if draw(st.booleans()):
            effects.append((effect, number, Read(agent, began, ended, ()), True))
            continue
        outcome = draw(st.sampled_from(Outcome))
        made = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and draw(st.booleans()))
        if outcome is Outcome.UNKNOWN:  # nobody waits for it
            ended = draw(st.integers(began, ended))
        effects.append((effect, number, Append(agent, request_id, began, ended, outcome), made))
    lists: dict[str, tuple[str, ...]] = dict.fromkeys(AGENTS, ())
    operations: list[Operation] = []
    for *_, operation, made in sorted(effects, key=lambda each: each[:2]):
        present = lists[operation.agent]
        if isinstance(operation, Read):
            operation = replace(operation, found=present)
        elif made:
            operation = replace(operation, seen=draw(st.sampled_from([present, None])))
            lists[operation.agent] = (*present, operation.request_id)
        operations.append(operation)
    return Recorded(draw(st.permutations(operations)), lists)


@given(recorded())
def test_what_one_ledger_shows_is_accepted(history: Recorded) -> None:
    assert violations(*history) == []


@st.composite
def arbitrary(draw: st.DrawFn) -> Recorded:
    """A few operations on one agent, with whatever times and values."""
    names = [f"r{number}" for number in range(draw(st.integers(0, 3)))]
    final = tuple(draw(st.permutations(names))[: draw(st.integers(0, 3))])
    beginnings = st.sampled_from([final[:length] for length in range(len(final) + 1)])

    def interval() -> tuple[int, int]:
        began = draw(st.integers(0, 6))
        return began, began + draw(st.integers(0, 3))

    operations: list[Operation] = [
        Append("a", name, *interval(), draw(st.sampled_from(Outcome)), draw(st.one_of(st.none(), beginnings)))
        for name in names
    ]
    operations += [Read("a", *interval(), draw(beginnings)) for _ in range(draw(st.integers(0, 2)))]
    return Recorded(operations, {"a": final})


def can_be(history: Recorded) -> bool:
    """Whether some order of what took effect explains all, by trying every one."""
    final = history.final["a"]
    effective: list[Operation] = []
    for each in history.operations:
        if isinstance(each, Append):
            inside = each.request_id in final
            if each.outcome is (Outcome.FAILED if inside else Outcome.OK):
                return False
            if not inside:
                continue
        effective.append(each)
    return any(explains(order, final) for order in permutations(effective))


def explains(order: Sequence[Operation], final: tuple[str, ...]) -> bool:
    present: tuple[str, ...] = ()
    for number, each in enumerate(order):
        for later in order[number + 1 :]:
            unknown = isinstance(later, Append) and later.outcome is Outcome.UNKNOWN
            if (inf if unknown else later.ended) < each.began:
                return False
        if isinstance(each, Read):
            if each.found != present:
                return False
        else:
            if each.seen not in (None, present):
                return False
            present = (*present, each.request_id)
    return present == final


@given(arbitrary())
def test_it_says_what_trying_every_order_says(history: Recorded) -> None:
    assert (violations(*history) == []) == can_be(history)


def ok(name: str, began: float = 0, ended: float = 9, seen: tuple[str, ...] | None = None) -> Append:
    return Append("a", name, began, ended, Outcome.OK, seen)


@pytest.mark.parametrize(
    ("operations", "final", "kind"),
    [
        ([ok("r0")], (), Kind.LOST),
        ([Append("a", "r0", 0, 1, Outcome.FAILED)], ("r0",), Kind.UNDEAD),
        ([ok("r0")], ("r0", "r0"), Kind.DOUBLED),
        ([ok("r0")], ("r0", "r1"), Kind.STRANGE),
        ([ok("r0"), Append("b", "r1", 0, 1, Outcome.UNKNOWN)], ("r0", "r1"), Kind.STRANGE),
        ([ok("r0"), Read("a", 0, 9, ("lost",))], ("r0",), Kind.FORKED),
        ([ok("r0"), ok("r1", seen=())], ("r0", "r1"), Kind.BLIND),
        ([ok("r0", 2, 3), ok("r1", 0, 1)], ("r0", "r1"), Kind.STALE),
        ([ok("r0", 0, 1), Read("a", 2, 3, ())], ("r0",), Kind.STALE),
        ([ok("r0"), Read("a", 1, 2, ("r0",)), Read("a", 3, 4, ())], ("r0",), Kind.STALE),
        ([ok("r0", 3, 4), Read("a", 1, 2, ("r0",))], ("r0",), Kind.FORESEEN),
    ],
)
def test_what_is_wrong_is_found(operations: list[Operation], final: tuple[str, ...], kind: Kind) -> None:
    assert {violation.kind for violation in violations(operations, {"a": final})} == {kind}


def test_a_message_says_where_it_is_wrong() -> None:
    [found] = violations([ok("r0", 2, 3), ok("r1", 0, 1)], {"a": ("r0", "r1")})
    assert str(found) == (
        "a: stale: r0 began after r1 was acknowledged, and stands in front of it"
        " (it ended at 1.000000, and the other began at 2.000000)"
    )


def test_a_retry_is_part_of_its_append() -> None:
    append: Callable[[str], Append] = lambda agent: Append(agent, "r", 0, 1, Outcome.OK)  # noqa: E731
    with pytest.raises(ValueError, match="a retry is part of the first"):
        violations([append("a"), append("b")], {})
