"""Staggered arrivals: arithmetic, and what is said of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plots import Point
from benchmarks.staggered import PAIRS, Sizes, claims, facts, figures, moments, plots, tables
from benchmarks.turns import Turn

SIZES = Sizes(400, 400, 6, 6, 0.1)


def sample(slower: float) -> dict[str, Any]:
    """Alone everything takes a second to the first token and two in all; together `slower` times that."""

    def turn(by: float) -> dict[str, Any]:
        return {"first": by, "total": 2 * by, "gap": 0.1 * by}

    both = {"A": turn(slower), "B": turn(slower), "while_prefilling": True}
    alone = {name: turn(1.0) for name in ("A", "cold B", "warm B")}
    return {"alone": alone, "pairs": dict.fromkeys(PAIRS, both)}


def test_ratios_are_within_samples() -> None:
    found = figures(SIZES, [sample(1.0), sample(1.2), sample(3.0)])
    found = json.loads(json.dumps(found))
    for pair in PAIRS:
        assert found["pairs"][pair]["B first ratio"]["samples"] == pytest.approx([1.0, 1.2, 3.0])
        assert found["pairs"][pair]["A total ratio"]["median"] == pytest.approx(1.2)
        assert found["pairs"][pair]["while_prefilling"] == 3
    assert [claim.met for claim in claims(found)] == [True, False, True]
    for table in tables(found):
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_plots() -> None:
    first, total = plots(json.loads(json.dumps(figures(SIZES, [sample(1.0), sample(1.5), sample(3.0)]))))
    groups = ("cold B, 0.1 s after A", "warm B, 0.1 s after A", "warm B, in A's prefill")
    assert first.series["B alone"] == [Point(group, 1.0, 1.0, 1.0) for group in groups]
    assert first.series["B after A"] == [Point(group, 1.5, 1.0, 3.0) for group in groups]
    assert total.series["A"][0] == Point("alone", 2.0, 2.0, 2.0)
    assert total.series["A"][1:] == [Point(f"with {group}", 3.0, 2.0, 6.0) for group in groups]


def test_a_gap_is_the_longest() -> None:
    turn = Turn(arrivals=[1.0, 1.5, 1.625, 3.0], seconds=4.0)
    assert facts(turn)["gap"] == 1.375
    assert facts(Turn(arrivals=[1.0]))["gap"] == 0.0


@given(st.integers(1, 50))
def test_moments_are_within_the_prefill(samples: int) -> None:
    found = moments(samples)
    assert len(found) == samples
    assert found == sorted(set(found))
    assert all(0 < moment < 0.9 for moment in found)
