"""The check of histories: it accepts what one ledger can have shown, and finds each way in which it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.cluster.history import Append, Kind, Operation, Outcome, Read, violations


class Recorded(NamedTuple):
    """A history, and the lists that it ended with."""

    operations: list[Operation]
    final: dict[str, tuple[str, ...]]

    def kinds(self) -> set[Kind]:
        return {violation.kind for violation in violations(self.operations, self.final)}

    def taken(self, agent: str) -> list[Append]:
        """The appends that are in the agent's list, in its order."""
        appends = {each.request_id: each for each in self.operations if isinstance(each, Append)}
        return [appends[request_id] for request_id in self.final[agent]]

    def changed(self, old: Operation, new: Operation) -> Recorded:
        return self._replace(operations=[new if each is old else each for each in self.operations])

    def listing(self, *elements: str) -> Recorded:
        return self._replace(final={**self.final, "a": elements})


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


@given(recorded(), st.data())
def test_a_lost_append_is_found(history: Recorded, data: st.DataObject) -> None:
    known = [each for each in history.taken("a") if each.outcome is Outcome.OK]
    assume(known)
    gone = data.draw(st.sampled_from(known)).request_id
    left = [each for each in history.final["a"] if each != gone]
    assert Kind.LOST in history.listing(*left).kinds()


@given(recorded(), st.data())
def test_an_append_that_failed_and_is_there_is_found(history: Recorded, data: st.DataObject) -> None:
    assume(taken := history.taken("a"))
    undead = data.draw(st.sampled_from(taken))
    assert Kind.UNDEAD in history.changed(undead, replace(undead, outcome=Outcome.FAILED)).kinds()


@given(recorded(), st.data())
def test_an_append_that_is_there_twice_is_found(history: Recorded, data: st.DataObject) -> None:
    assume(final := [*history.final["a"]])
    final.insert(data.draw(st.integers(0, len(final))), data.draw(st.sampled_from(final)))
    assert Kind.DOUBLED in history.listing(*final).kinds()


@given(recorded(), st.data())
def test_an_append_to_another_agent_or_of_nobody_is_found(history: Recorded, data: st.DataObject) -> None:
    final = [*history.final["a"]]
    stranger = data.draw(st.sampled_from([*history.final["b"], "nobody's"]))
    final.insert(data.draw(st.integers(0, len(final))), stranger)
    assert Kind.STRANGE in history.listing(*final).kinds()


@given(recorded(), st.data())
def test_a_read_of_what_is_lost_is_found(history: Recorded, data: st.DataObject) -> None:
    full = [each for each in history.operations if isinstance(each, Read) and each.found]
    assume(full)
    read = data.draw(st.sampled_from(full))
    place = data.draw(st.integers(0, len(read.found) - 1))
    other = (*read.found[:place], "lost", *read.found[place + 1 :])
    assert history.changed(read, replace(read, found=other)).kinds() == {Kind.FORKED}


@pytest.mark.slow
@given(recorded(), st.data())
def test_a_turn_that_continued_something_else_is_found(history: Recorded, data: st.DataObject) -> None:
    assume(taken := history.taken("a"))
    place = data.draw(st.integers(0, len(taken) - 1))
    other = data.draw(st.sampled_from([("lost",), *([history.final["a"][: place - 1]] if place else [])]))
    assume(place or other)
    assert history.changed(taken[place], replace(taken[place], seen=other)).kinds() == {Kind.BLIND}


@given(recorded(), st.data())
def test_a_read_that_lacks_what_was_acknowledged_before_is_found(history: Recorded, data: st.DataObject) -> None:
    known = [place for place, each in enumerate(history.taken("a")) if each.outcome is Outcome.OK]
    assume(known)
    place = data.draw(st.sampled_from(known))
    late = history.taken("a")[place].ended + 1
    read = Read("a", late, late + 1, history.final["a"][: data.draw(st.integers(0, place))])
    history.operations.append(read)
    assert history.kinds() == {Kind.STALE}


@given(recorded(), st.data())
def test_a_read_of_what_had_not_begun_is_found(history: Recorded, data: st.DataObject) -> None:
    assume(taken := history.taken("a"))
    place = data.draw(st.integers(0, len(taken) - 1))
    early = taken[place].began - 1
    history.operations.append(Read("a", early - 1, early, history.final["a"][: place + 1]))
    assert Kind.FORESEEN in history.kinds()


@given(st.integers(2, 8), st.data())
def test_an_order_against_time_is_found(number: int, data: st.DataObject) -> None:
    names = [f"r{each}" for each in range(number)]
    history = Recorded([Append("a", each, 2 * n, 2 * n + 1, Outcome.OK) for n, each in enumerate(names)], {})
    order = data.draw(st.permutations(names))
    assert history.listing(*order).kinds() == (set() if order == names else {Kind.STALE})


def test_a_read_that_goes_back_is_found() -> None:
    append = Append("a", "r", 0, 9, Outcome.OK)
    history = Recorded([append, Read("a", 1, 2, ("r",)), Read("a", 3, 4, ())], {"a": ("r",)})
    assert history.kinds() == {Kind.STALE}


LIST = {"a": ("r0", "r1")}


@pytest.mark.parametrize(
    ("operations", "final", "said"),
    [
        (
            [Append("a", "r0", 0, 1, Outcome.OK), Append("a", "r1", 0, 1, Outcome.OK, ())],
            LIST,
            "a: blind: r1 is at 1, but what it continued has from 0 on nothing, and the list has r0",
        ),
        (
            [Append("a", "r0", 0, 1, Outcome.OK)],
            LIST,
            "a: strange: r1 is at 1, but nobody appended it",
        ),
        (
            [Append("a", "r0", 2, 3, Outcome.OK), Append("a", "r1", 0, 1, Outcome.OK)],
            LIST,
            "a: stale: r0 began after r1 was acknowledged, and stands in front of it"
            " (it ended at 1.000000, and the other began at 2.000000)",
        ),
        (
            [Append("b", "r0", 0, 1, Outcome.OK)],
            {},
            "b: lost: r0 was acknowledged at 1.000000, and is not in the list",
        ),
    ],
)
def test_it_says_what_is_wrong(operations: list[Operation], final: dict[str, tuple[str, ...]], said: str) -> None:
    assert [*map(str, violations(operations, final))] == [said]


def test_a_retry_is_part_of_its_append() -> None:
    append: Callable[[str], Append] = lambda agent: Append(agent, "r", 0, 1, Outcome.OK)  # noqa: E731
    with pytest.raises(ValueError, match="a retry is part of the first"):
        violations([append("a"), append("b")], {})
