"""Where restoring begins to be worth it, and how sure that is."""

import json

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.break_even import break_even, summaries, tables


def figures(rounds: dict[int, list[tuple[float, float]]]) -> dict[str, object]:
    found = {"model": "demo", "backend": "cpu", "new_tokens": 50, "default": 16, **summaries(rounds)}
    again: dict[str, object] = json.loads(json.dumps(found))
    return again


def test_the_break_even_is_where_restoring_stays_faster() -> None:
    slower, faster = [(2.0, 1.0)] * 3, [(1.0, 2.0)] * 3
    assert break_even({16: slower, 32: faster, 64: faster}) == 32
    assert break_even({16: faster, 32: slower, 64: faster}) == 64
    assert break_even({16: faster}) == 16
    assert break_even({16: faster, 32: slower}) is None


def test_equal_is_not_faster() -> None:
    assert break_even({16: [(1.0, 1.0)]}) is None


@given(
    st.dictionaries(
        st.integers(1, 1000), st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)), min_size=1), min_size=1
    )
)
def test_from_the_break_even_on_every_median_is_faster(rounds: dict[int, list[tuple[float, float]]]) -> None:
    found = break_even(rounds)
    from_there = {length: each for length, each in rounds.items() if found is not None and length >= found}
    assert all(break_even({length: each}) == length for length, each in from_there.items())
    below = [length for length in rounds if length not in from_there]
    assert not below or break_even({max(below): rounds[max(below)]}) is None


def test_what_is_said_of_it() -> None:
    found = figures({16: [(2.0, 1.0)], 32: [(1.0, 2.0)]})
    [table] = tables(found)
    assert [row[0] for row in table.rows] == ["16", "32"]
    assert "from 32 tokens on;" in table.note
    assert "more than 16 tokens" in tables(figures({16: [(2.0, 1.0)]}))[0].note
