"""The check of histories: it accepts what one ledger can have shown, and finds each way in which it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Return whether some order of what took effect explains all; tries each."""
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


def test_a_retry_is_part_of_its_append() -> None:
    append: Callable[[str], Append] = lambda agent: Append(agent, "r", 0, 1, Outcome.OK)  # noqa: E731
    with pytest.raises(ValueError, match="a retry is part of the first"):
        violations([append("a"), append("b")], {})
