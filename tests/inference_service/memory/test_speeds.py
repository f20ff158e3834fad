"""Fetch or compute: what speeds are learnt, and what follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.memory.speeds import LEAST_TOKENS, PROBE_SECONDS, Line, Option, Source, Speeds

MIB = 1 << 20
positive = st.floats(1e-4, 1e4)


def measured(bytes_per_second: float = 100 * MIB, latency: float = 0.05, tokens_per_second: float = 1000.0) -> Speeds:
    """What is known after fetches of two sizes, of either source, and one long prompt."""
    speeds = Speeds()
    for source in Source:
        for size in (MIB, 64 * MIB):
            speeds.begin_fetch(source, 0.0)
            speeds.end_fetch(source, size, size, latency + size / bytes_per_second, 0.0)
    speeds.computed("m", 0, 2048, 2048 / tokens_per_second)
    return speeds


def all_or_nothing(speeds: Speeds, tokens: int, size: int, now: float = 1.0, source: Source = Source.OBJECTS) -> bool:
    """Whether a prompt's first tokens are fetched, of which nothing is here."""
    options = [Option(tokens, {source: size}), Option(0, {})]
    return speeds.choose("m", options, now) == 0


@given(positive, st.floats(0, 1e3), st.lists(st.floats(1, 1e6), min_size=2, max_size=10, unique=True))
def test_a_line_is_found_again(intercept: float, slope: float, xs: list[float]) -> None:
    line = Line(through_origin=True)
    if max(xs) < 2 * min(xs):
        xs.append(4 * max(xs))
    for x in xs:
        line.fade(0.1)
        line.add(x, intercept + slope * x)
    found, rises = line.parts
    for x in xs:
        assert found + rises * x == pytest.approx(
            intercept + slope * x, rel=1e-3, abs=1e-3 * max(xs) * max(slope, 1e-3)
        )


@given(
    st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 1e4), st.floats(0, 3)), min_size=1, max_size=20), st.booleans()
)
def test_no_line_falls_or_begins_below_zero(points: list[tuple[float, float, float]], through_origin: bool) -> None:
    line = Line(through_origin=through_origin)
    assert not line.known
    for x, y, halvings in points:
        line.fade(halvings)
        line.add(x, y)
    assert line.known
    intercept, slope = line.parts
    assert intercept >= -1e-9 * max(y for _, y, _ in points)
    assert slope >= 0


def test_points_of_one_size_give_a_line_from_zero_or_a_level_one() -> None:
    for through_origin, parts in ((True, (0.0, 0.5)), (False, (2.0, 0.0))):
        line = Line(through_origin=through_origin)
        for y in (1.0, 3.0):
            line.add(4.0, y)
        assert line.parts == pytest.approx(parts)


def test_what_was_never_measured_is_fetched() -> None:
    speeds = Speeds()
    assert all_or_nothing(speeds, 10_000, 10 * MIB)
    speeds.computed("m", 0, 2048, 0.01)
    assert all_or_nothing(speeds, 10_000, 10 * MIB), "the fetch is unknown"
    speeds = Speeds()
    speeds.begin_fetch(Source.OBJECTS, 0.0)
    speeds.end_fetch(Source.OBJECTS, MIB, MIB, 100.0, 0.0)
    assert all_or_nothing(speeds, 10_000, 10 * MIB), "the prefill is unknown"
    speeds.computed("other", 0, 2048, 0.01)
    speeds.computed("m", 0, LEAST_TOKENS - 1, 0.01)
    assert all_or_nothing(speeds, 10_000, 10 * MIB), "it is of another model, or of a chunk that says nothing"
    speeds.computed("m", 0, LEAST_TOKENS, 0.01)
    assert not all_or_nothing(speeds, 10_000, 10 * MIB)


def test_the_faster_is_taken() -> None:
    tokens, size = 2048, 64 * MIB  # 2.05 s to compute
    assert all_or_nothing(measured(bytes_per_second=40 * MIB), tokens, size)
    assert not all_or_nothing(measured(bytes_per_second=20 * MIB), tokens, size)
    assert all_or_nothing(measured(bytes_per_second=20 * MIB, tokens_per_second=500), tokens, size)
    assert not all_or_nothing(measured(latency=3.0), tokens, size)


def test_the_longer_the_context_the_more_a_token_takes() -> None:
    speeds = measured(bytes_per_second=20 * MIB)
    speeds.computed("m", 30_000, 2048, 8.0)
    assert speeds.prefill_seconds("m", 30_000, 32_048) == pytest.approx(8.0, rel=0.01)
    assert speeds.prefill_seconds("m", 0, 2048) == pytest.approx(2.05, rel=0.01)
    assert not all_or_nothing(speeds, 2048, 64 * MIB)
    behind = [Option(32_048, {Source.OBJECTS: 64 * MIB}), Option(30_000, {})]
    assert speeds.choose("m", behind, 1.0) == 0


def test_sources_have_speeds_of_their_own() -> None:
    speeds = measured()
    for _ in range(4):
        speeds.begin_fetch(Source.NODE, 0.0)
        speeds.end_fetch(Source.NODE, MIB, MIB, 100.0, 0.0)
    assert not all_or_nothing(speeds, 2048, MIB, source=Source.NODE)
    assert all_or_nothing(speeds, 2048, MIB, source=Source.OBJECTS)


def test_a_turn_stops_before_the_run_that_is_slow() -> None:
    """Blocks of another node, blocks here, blocks of the object store, which is slow."""
    speeds = measured()
    for size in (MIB, 64 * MIB):
        speeds.begin_fetch(Source.OBJECTS, 0.0)
        speeds.end_fetch(Source.OBJECTS, size, size, 30.0, 0.0)
    options = [
        Option(6000, {Source.NODE: MIB, Source.OBJECTS: MIB}),
        Option(0, {}),
        Option(4000, {Source.NODE: MIB}),
        Option(0, {}),
    ]
    assert speeds.choose("m", options, 1.0) == 2


def test_what_is_slow_is_asked_again_now_and_then_and_then_believed() -> None:
    speeds, now = measured(), 0.0
    for _ in range(20):
        speeds.begin_fetch(Source.OBJECTS, now)
        speeds.end_fetch(Source.OBJECTS, MIB, MIB, 60.0, now)
    assert not all_or_nothing(speeds, 2048, MIB, now + PROBE_SECONDS - 1)
    probes = 0
    for _ in range(10):
        now += PROBE_SECONDS
        assert all_or_nothing(speeds, 2048, MIB, now), "a probe is due"
        speeds.begin_fetch(Source.OBJECTS, now)
        assert probes or not all_or_nothing(speeds, 2048, MIB, now), "one turn is enough"
        speeds.end_fetch(Source.OBJECTS, MIB, MIB, 0.02, now)
        probes += 1
        if all_or_nothing(speeds, 2048, MIB, now + 1):
            break
    assert probes <= 3


def test_a_fetch_that_brings_nothing_is_as_slow_as_it_was_and_never_fast() -> None:
    speeds = measured()
    before = speeds.fetch_seconds({Source.OBJECTS: MIB})
    speeds.end_fetch(Source.OBJECTS, MIB, 0, 0.001, 0.0)
    assert speeds.fetch_seconds({Source.OBJECTS: MIB}) == before
    for _ in range(20):
        speeds.end_fetch(Source.OBJECTS, MIB, 0, 30.0, 0.0)
    assert not all_or_nothing(speeds, 2048, MIB)


def test_always_is_always() -> None:
    speeds = Speeds(measures=False)
    speeds.computed("m", 0, 2048, 0.01)
    speeds.begin_fetch(Source.OBJECTS, 0.0)
    speeds.end_fetch(Source.OBJECTS, MIB, MIB, 100.0, 0.0)
    assert all_or_nothing(speeds, 2048, MIB)
