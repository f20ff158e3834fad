"""Fetch or compute: what speeds are learnt, and what follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.memory.speeds import LEAST_TOKENS, PROBE_SECONDS, Source, Speeds

MIB = 1 << 20
TOKENS, SIZE = 2048, 64 * MIB


def measured(bytes_per_second: float = 100 * MIB, tokens_per_second: float = 1000.0) -> Speeds:
    """Return speeds measured by a fetch from either source, and one long prompt."""
    speeds = Speeds()
    for source in Source:
        fetch(speeds, SIZE / bytes_per_second, source)
    speeds.computed("m", TOKENS, TOKENS / tokens_per_second)
    return speeds


def fetch(speeds: Speeds, seconds: float, source: Source = Source.OBJECTS, now: float = 0.0) -> None:
    speeds.begin_fetch(source, now)
    speeds.end_fetch(source, SIZE, SIZE, seconds, now)


def fetches(speeds: Speeds, now: float = 1.0, source: Source = Source.OBJECTS) -> bool:
    return speeds.fetches("m", TOKENS, {source: SIZE}, now)


@given(st.lists(st.tuples(st.integers(LEAST_TOKENS, 4096), st.floats(0.01, 100)), min_size=1, max_size=20))
def test_a_speed_is_among_those_measured(chunks: list[tuple[int, float]]) -> None:
    speeds = Speeds()
    for tokens, seconds in chunks:
        speeds.computed("m", tokens, seconds)
    found = speeds.prefill_seconds("m", 1)
    each = [seconds / tokens for tokens, seconds in chunks]
    assert found is not None and min(each) * (1 - 1e-9) <= found <= max(each) * (1 + 1e-9)


def test_what_was_never_measured_is_fetched() -> None:
    speeds = Speeds()
    speeds.computed("m", TOKENS, 0.01)
    assert fetches(speeds), "the fetch is unknown"
    speeds = Speeds()
    fetch(speeds, 100.0)
    speeds.computed("other", TOKENS, 0.01)
    speeds.computed("m", LEAST_TOKENS - 1, 0.01)
    assert fetches(speeds), "prefill is of another model, or of a chunk that says nothing"
    speeds.computed("m", LEAST_TOKENS, 0.01)
    assert not fetches(speeds)


def test_the_faster_is_taken() -> None:
    assert fetches(measured(bytes_per_second=40 * MIB)), "2.05 s to compute"
    assert not fetches(measured(bytes_per_second=20 * MIB))
    assert fetches(measured(bytes_per_second=20 * MIB, tokens_per_second=500))


def test_sources_have_speeds_of_their_own_and_the_slowest_counts() -> None:
    speeds = measured()
    fetch(speeds, 100.0, Source.NODE)
    assert not fetches(speeds, source=Source.NODE) and fetches(speeds, source=Source.OBJECTS)
    assert not speeds.fetches("m", TOKENS, {Source.NODE: SIZE, Source.OBJECTS: MIB}, 1.0)


def test_what_is_slow_is_asked_again_now_and_then_and_then_believed() -> None:
    speeds, now = measured(), 0.0
    for _ in range(20):
        fetch(speeds, 60.0)
    assert not fetches(speeds, PROBE_SECONDS - 1)
    for _ in range(3):
        now += PROBE_SECONDS
        assert fetches(speeds, now), "a probe is due"
        fetch(speeds, 0.02, now=now)
    assert fetches(speeds, now + 1)


def test_a_fetch_that_brings_nothing_is_as_slow_as_it_was_and_never_fast() -> None:
    speeds = measured()
    before = speeds.fetch_seconds({Source.OBJECTS: SIZE})
    speeds.end_fetch(Source.OBJECTS, SIZE, 0, 0.001, 0.0)
    assert speeds.fetch_seconds({Source.OBJECTS: SIZE}) == pytest.approx(before)
    speeds.end_fetch(Source.OBJECTS, SIZE, 0, 30.0, 0.0)
    assert not fetches(speeds)
