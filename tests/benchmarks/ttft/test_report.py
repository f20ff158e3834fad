"""Ratios are of one round, and what is not there yet is not spoken of."""

import json
from typing import Any

import pytest

from benchmarks.ttft.report import row, tables

RAW = {
    "cold": [9.0, 8.0, 8.2],
    "warm": [5.0, 0.3, 0.2],
    "warm_load": [0.1, 0.1, 0.1],
    "warm_prefill": [0.1, 0.1, 0.1],
    "dropped": [5.0, 0.8, 0.9],
    "hot": [5.0, 0.2, 0.2],
    "read": [9.0, 0.1, 0.01],
    "read_dropped": [9.0, 0.5, 0.4],
    "prefill": [9.0, 0.08, 0.07],
    "step": [9.0, 0.02, 0.02],
    "mlx_lm_cold": [7.0],
}


def figures(model: str = "demo", backend: str = "cpu", **lengths: dict[str, list[float]]) -> dict[str, Any]:
    found = {
        "model": model,
        "backend": backend,
        "new_tokens": 50,
        "restart": {"seconds": {"median": 2.0}, "first": {"median": 0.1}},
        "page_cache_left": 0.0,
        "failed": {},
        "lengths": {
            name.removeprefix("t"): {"bytes": {"agentmem": 10**6}, **row(raw)} for name, raw in lengths.items()
        },
    }
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


def test_the_first_sample_is_a_warm_up_where_there_are_more() -> None:
    found = row(RAW)
    assert found["warm"]["warm_up"] == 5.0
    assert found["warm"]["samples"] == [0.3, 0.2]
    assert found["mlx_lm_cold"]["samples"] == [7.0]


def test_ratios_are_of_one_round() -> None:
    found = row(RAW)
    assert found["warm_over_parts"]["samples"] == pytest.approx([0.3 / 0.2, 0.2 / 0.1])
    assert found["dropped_over_parts"]["samples"] == pytest.approx([0.8 / 0.6, 0.9 / 0.49])
    assert found["hot_over_parts"]["samples"] == pytest.approx([0.2 / 0.1, 0.2 / 0.09])


def test_a_round_that_was_cut_off_has_no_ratio() -> None:
    assert row({**RAW, "step": [9.0, 0.02]})["warm_over_parts"]["samples"] == pytest.approx([0.3 / 0.2])
    assert "dropped_over_parts" not in row({name: RAW[name] for name in RAW if name != "dropped"})


def test_tables_of_a_part_of_it() -> None:
    for found in (figures(t1000=RAW, t32000={"cold": [60.0], "mlx_lm_cold": [70.0]}), figures()):
        for table in tables(found):
            assert all(len(cells) == len(table.columns) for cells in table.rows)
    [times, parts, _] = tables(figures(t1000=RAW))
    assert times.rows[0][:2] == ["1,000", "8100 ms (8000–8200)"]
    assert parts.rows[0][-3:] == ["1.75x", "1.59x", "2.11x"]


def test_what_failed_is_told() -> None:
    [times, *_] = tables({**figures(t1000=RAW), "failed": {"mlx_lm_4_bit": "no kernel"}})
    assert "mlx-lm load_prompt_cache, 4 bit failed: no kernel." in times.note
