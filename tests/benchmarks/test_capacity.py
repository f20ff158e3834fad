"""Pools, schedules and sums of the capacity benchmark."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.capacity import (
    KEPT,
    NOTHING,
    chosen,
    claims,
    figures,
    first_length,
    plots,
    pool_bytes,
    portions,
    tables,
)
from benchmarks.plots import exact


def test_a_pool_is_made_of_whole_blocks() -> None:
    assert pool_bytes(3, 8192, 960) == 3 * 8192 * 960
    assert pool_bytes(3, 8193, 10) == 3 * 33 * 256 * 10


def test_agents_end_at_their_length() -> None:
    assert first_length(8192, 10, 36) + 11 * 36 == 8192
    with pytest.raises(SystemExit, match="do not fit into 396"):
        first_length(396, 10, 36)


@given(total=st.integers(0, 200), rounds=st.integers(1, 20))
def test_baseline_turns_are_spread_evenly(total: int, rounds: int) -> None:
    found = portions(total, rounds)
    assert (len(found), sum(found)) == (rounds, total)
    assert max(found) - min(found) <= 1


@given(agents=st.integers(1, 20), number=st.integers(-1, 20), data=st.data())
def test_whose_turns_are_asked_again(agents: int, number: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, agents))
    found = chosen(count, agents, number)
    assert len(set(found)) == count
    assert all(0 <= agent < agents for agent in found)


def test_with_one_a_round_every_agent_has_its_turn() -> None:
    assert sorted(agent for number in range(10) for agent in chosen(1, 10, number)) == list(range(10))


def _turn(first: float, **cached: int) -> dict[str, Any]:
    return {
        **{"prompt": 100, "first": first, "seconds": first + 0.5, "cached": cached},
        **{"load": 0.1, "load_bytes": 1_000_000 if cached else 0, "prefill": first / 2, "queue": 0.1},
    }


def _figures(baseline: int) -> dict[str, Any]:
    metrics = {
        **{"queries": 200, "generated": 4, "bytes_read": 2e6, "bytes_written": 1e6, "evictions": 2},
        **{"hits": {"warm": 150, "hot": 30}, "lookups": {"match": {"extend": 2}, "tier": {"warm": 1, "hot": 1}}},
    }
    asked = {
        **{"agents": 2, "holds": 1, "length": 512, "rounds": 2, "new": 32, "generated": 2, "model": "demo"},
        **{"pool_bytes": 491520, "pool_blocks": 2},
    }
    kept = [_turn(0.5, warm=90), _turn(0.3, hot=90)]
    each = {"wall": 2.0, "metrics": metrics, KEPT: kept}
    rounds = [{**each, NOTHING: [_turn(9.5)] * count} for count in portions(baseline, 2)]
    found = figures(asked, [9.0, 10.0], {**each, NOTHING: []}, rounds)
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


def test_the_time_of_turns_that_were_not_measured_is_said_to_be_extrapolated() -> None:
    found = _figures(2)
    assert found["wall"] == {KEPT: 4.0, NOTHING: 40.0}
    assert (found["extrapolated"], found["times_as_fast"]) == (True, 10.0)
    [times, metrics] = tables(found)
    assert [row[0] for row in times.rows] == [KEPT, f"{NOTHING}, extrapolated"]
    assert times.rows[0][1:5] == ("4", "400 ms", "–", "–")
    assert "2 turns were measured; the time of 4 is their mean times 4" in times.note
    assert ("tokens of prompts that were warm", "75.0%") in metrics.rows
    assert all(len(row) == len(table.columns) for table in (times, metrics) for row in table.rows)


def test_all_of_them_measured() -> None:
    found = _figures(4)
    assert not found["extrapolated"]
    assert "mean" not in tables(found)[0].note


def test_without_a_baseline_nothing_is_compared() -> None:
    found = _figures(0)
    assert "times_as_fast" not in found
    assert len(tables(found)[0].rows) == 1
    assert claims(found) == []


def test_plots_show_the_percentiles_that_turns_suffice_for() -> None:
    found = _figures(2)
    [plot] = plots(found)
    assert plot.series == {f"{KEPT}, 4 turns": [exact("p50", 0.4)], f"{NOTHING}, 2 turns": [exact("p50", 9.5)]}
    found["ways"][KEPT]["turns"] = 100
    assert [point.x for point in plots(found)[0].series[f"{KEPT}, 100 turns"]] == ["p50", "p90", "p99"]
    assert len(plots(_figures(0))[0].series) == 1
