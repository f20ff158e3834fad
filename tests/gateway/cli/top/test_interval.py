from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.top.interval import Interval, restarted
from gateway.cli.top.names import FIRST_TOKEN, HITS, RUNNING
from gateway.cli.top.page import Page

from .pages import Process

amounts = st.floats(0, 1e12)
counters = st.dictionaries(st.tuples(st.sampled_from("abc"), st.sampled_from(["hot", "warm"])), amounts)


def page(values: dict[tuple[str, str], float], started: float | None, at: float) -> Page:
    process = Process(started)
    process.set(RUNNING, 1)
    for (model, tier), value in values.items():
        process.count("agentmem_prefix_cache_hits", value, model_id=model, tier=tier)
    return process.page(at)


@given(counters, counters, st.none() | st.just(5.0), st.none() | st.sampled_from([5.0, 6.0]), st.floats(0.01, 1e6))
def test_no_increase_and_no_rate_is_ever_negative(
    before: dict[tuple[str, str], float],
    after: dict[tuple[str, str], float],
    was: float | None,
    now: float | None,
    seconds: float,
) -> None:
    interval = Interval(page(before, was, 100.0), page(after, now, 100.0 + seconds))
    increase = interval.increase(HITS)
    assert (increase is None) == (not after)
    assert increase is None or 0 <= increase <= math.fsum(after.values()) * (1 + 1e-9)
    assert all(value >= 0 for value in interval.increases("tier", HITS).values())
    assert (interval.rate(HITS) or 0.0) >= 0


@given(st.lists(st.lists(amounts.map(round), max_size=5), min_size=1, max_size=6))
def test_increases_add_up_to_what_happened(readings: list[list[int]]) -> None:
    process = Process()
    process.count("agentmem_prefix_cache_hits", 0, tier="hot")
    before, seen = process.page(), 0.0
    for amounts_since in readings:
        for amount in amounts_since:
            process.count("agentmem_prefix_cache_hits", amount, tier="hot")
        after = process.page()
        seen += Interval(before, after).increase(HITS) or 0.0
        before = after
    assert seen == sum(map(sum, readings))


@given(amounts.map(round), amounts.map(round))
def test_a_restarted_process_counts_from_zero(before: int, after: int) -> None:
    values = [{("a", "hot"): float(number)} for number in (before, after)]
    interval = Interval(page(values[0], 5.0, 0.0), page(values[1], 6.0, 1.0))
    assert interval.increase(HITS) == after
    assert Interval(page(values[0], 5.0, 0.0), page(values[1], 5.0, 1.0)).increase(HITS) == (
        after - before if after >= before else after
    )


def test_restarts_are_known_by_the_start_or_by_what_became_smaller() -> None:
    one, other = {("a", "hot"): 3.0}, {("a", "hot"): 2.0}
    assert restarted(page(one, 5.0, 0), page(one, 6.0, 1))
    assert not restarted(page(one, 5.0, 0), page(one, 5.0, 1))
    assert restarted(page(one, None, 0), page(other, None, 1))
    assert not restarted(page(other, None, 0), page(one, None, 1))
    assert not restarted(page(one, None, 0), page({}, None, 1))  # a series that went


def test_one_series_that_became_smaller_makes_all_series_begin_at_zero() -> None:
    """Else what a quick new process has counted beyond the old one's count would be taken for all of it."""
    before = page({("a", "hot"): 3.0, ("b", "hot"): 100.0}, None, 0)
    after = page({("a", "hot"): 5.0, ("b", "hot"): 1.0}, None, 1)
    assert Interval(before, after).increase(HITS) == 6


def test_rates_are_of_the_time_between_the_pages() -> None:
    before, after = page({("a", "hot"): 3.0}, 5.0, 10.0), page({("a", "hot"): 11.0}, 5.0, 12.0)
    assert Interval(before, after).rate(HITS, tier="hot") == 4
    assert Interval(before, after).rate(HITS, tier="warm") is None
    assert Interval(before, after, since=11.0).rate(HITS) == 8
    assert Interval(before, after, since=1.0).rate(HITS) == 4
    assert Interval(before, page({("a", "hot"): 11.0}, 5.0, 10.0)).rate(HITS) is None


def test_quantiles_are_of_what_was_observed_in_the_interval() -> None:
    process = Process()
    process.observe(FIRST_TOKEN, [100.0] * 50, tier="none", model_id="a")
    before = process.page()
    process.observe(FIRST_TOKEN, [0.02] * 9, tier="hot", model_id="a")
    process.observe(FIRST_TOKEN, [0.4], tier="none", model_id="a")
    interval = Interval(before, process.page())
    assert interval.increase(f"{FIRST_TOKEN}_count") == 10
    assert interval.quantile(0.5, FIRST_TOKEN, tier="none") == pytest.approx(0.375)
    p50, p95 = (interval.quantile(quantile, FIRST_TOKEN, model_id="a") for quantile in (0.5, 0.95))
    assert p50 is not None
    assert 0.01 <= p50 <= 0.025
    assert p95 is not None
    assert 0.25 <= p95 <= 0.5
    assert interval.quantile(0.5, FIRST_TOKEN, tier="warm") is None
