"""Commits through one primary and several."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster import primaries


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 2))
def test_waits_are_those_of_a_queue(times: list[float], seconds: float) -> None:
    found, free = [], 0.0
    for time in sorted(times):
        found.append(max(0.0, free - time))
        free = max(free, time) + seconds
    assert primaries.waits(np.array(sorted(times)), seconds) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("used", [0.5, 0.9])
def test_a_primary_is_m_d_1(used: float) -> None:
    times = np.cumsum(np.random.default_rng(1).exponential(1 / used, 1_000_000))
    assert primaries.waits(times, 1.0).mean() == pytest.approx(used / (2 * (1 - used)), rel=0.03)


def test_namespaces_are_as_large_as_zipf_says() -> None:
    found = np.bincount(primaries.namespaces(np.arange(200_000), 100, 1.0), minlength=100) / 200_000
    shares = 1 / np.arange(1, 101)
    assert found == pytest.approx(shares / shares.sum(), rel=0.2)
    assert found[0] == pytest.approx(1 / shares.sum(), rel=0.02)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.integers(1, 6))
def test_namespaces_are_divided_evenly(loads: list[float], shards: int) -> None:
    where = primaries.divided(np.array(loads), shards)
    each = np.bincount(where, weights=loads, minlength=shards)
    assert each.sum() == pytest.approx(sum(loads))
    assert each.max() <= sum(loads) / shards + max(loads) + 1e-9


def test_where_one_ends_and_how_many_are_needed() -> None:
    drawn = np.random.default_rng(2)
    times, agents = np.sort(drawn.uniform(0, 100, 200_000)), drawn.integers(0, 10**7, 200_000)
    rows = primaries.one(times, agents, 500.0, 100.0)
    assert [row["part"] for row in rows] == list(primaries.PARTS)
    assert [round(row["turns"] / 500, 2) for row in rows] == pytest.approx(primaries.PARTS, abs=0.02)
    assert rows[-1]["p99"] > 1 > 0.1 > rows[2]["p99"], "beyond its end waits grow with the time"
    found = primaries.several(times, agents, 500.0, 100.0)
    assert found["shards"] >= found["least"] == 5
    assert found["busiest"] <= primaries.USED
    assert found["p99"] < 0.1


def test_a_namespace_that_is_too_large_is_not_divided() -> None:
    times, agents = np.sort(np.random.default_rng(3).uniform(0, 10, 10_000)), np.zeros(10_000, dtype=int)
    found = primaries.several(times, agents, 500.0, 10.0)
    assert found["largest"] == pytest.approx(1000)
    assert found["busiest"] == pytest.approx(2)
    assert found["shards"] == 3
