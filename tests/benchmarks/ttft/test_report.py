"""Reports leave out figures that are missing."""

import json
from typing import Any

import pytest

from benchmarks.ttft.report import break_even, row, tables

RAW = {
    **{"cold": [9.0, 8.0, 8.2], "warm": [5.0, 0.3, 0.2], "dropped": [5.0, 0.8, 0.9]},
    **{"hot": [5.0, 0.2, 0.2], "mlx_lm_cold": [7.0]},
}


def figures(**lengths: dict[str, list[float]]) -> dict[str, Any]:
    found = {
        **{"model": "demo", "backend": "cpu", "new_tokens": 50, "page_cache_left": 0.0, "failed": {}},
        "min_restore_tokens": 64,
        "restart": {"seconds": {"median": 2.0}, "first": {"median": 0.1}},
        "lengths": {name.removeprefix("t"): row(raw) for name, raw in lengths.items()},
    }
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


def test_the_first_sample_is_a_warm_up_where_there_are_more() -> None:
    found = row(RAW)
    assert found["warm"]["warm_up"] == 5.0
    assert found["warm"]["samples"] == [0.3, 0.2]
    assert found["mlx_lm_cold"]["samples"] == [7.0]


@pytest.mark.parametrize(
    ("faster", "found"),
    [("-++", 32), ("+-+", 64), ("+++", 16), ("--+", 64), ("++-", None), ("=++", 32)],
)
def test_restoring_is_worth_it_from_where_it_stays_faster(faster: str, found: int | None) -> None:
    cold = {"+": 2.0, "-": 0.5, "=": 1.0}
    short = {
        f"t{length}": {"cold": [cold[way]], "warm": [1.0]} for length, way in zip((16, 32, 64), faster, strict=True)
    }
    assert break_even(figures(**short)["lengths"]) == found
    [times] = tables(figures(**short))
    assert (f"worth it from {found} tokens on" if found else "at none of these") in times.note
