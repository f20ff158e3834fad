"""Which prompt is next, and how much of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine.scheduling import SECONDS_ALONE, SECONDS_WHILE_OTHERS_DECODE, chunk_tokens, rank


def test_least_left_first_and_waiting_counts() -> None:
    assert rank(50, 0) < rank(16_000, 200) < rank(16_000, 0)
    assert rank(16_000, 250) < rank(50, 0)


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=6))
def test_nobody_starves(remaining: list[int]) -> None:
    waited = [0] * len(remaining)
    served = set()
    for _ in range(2_000 * len(remaining)):
        ranks = [rank(r, w) for r, w in zip(remaining, waited, strict=True)]
        chosen = ranks.index(min(ranks)) if min(ranks) <= rank(10, 0) else -1
        served.add(chosen)
        waited = [0 if i == chosen else w + 1 for i, w in enumerate(waited)]
        if served.issuperset(range(len(remaining))):
            return
    raise AssertionError(f"only {served} of {len(remaining)} were served")


positions = st.integers(0, 200_000)
speeds = st.floats(0, 1e6)


@given(position=positions, speed=speeds, seconds=st.floats(0.01, 10))
def test_bounds(position: int, speed: float, seconds: float) -> None:
    chunk = chunk_tokens(position, speed, seconds)
    assert 256 <= chunk <= 2048
    assert chunk % 256 == 0
    assert chunk <= max(256, speed * seconds) or speed == 0
    assert chunk <= chunk_tokens(0, speed, seconds)


@given(position=positions, slow=speeds.filter(bool), faster=st.floats(1, 100))
def test_faster_is_never_less(position: int, slow: float, faster: float) -> None:
    assert chunk_tokens(position, slow * faster) >= chunk_tokens(position, slow)


@pytest.mark.parametrize(
    ("position", "speed", "seconds", "tokens"),
    [
        *((at, 1e9, 0.5, most) for at, most in ((0, 2048), (8191, 2048), (8192, 1024), (20479, 1024), (20480, 512))),
        *((at, 0, 0.5, 512) for at in (0, 5000, 50_000)),  # speed is not known
        *((0, at, 0.25, most) for at, most in ((1, 256), (1024, 256), (2047, 256), (2048, 512), (8000, 1792))),
        (0, 2100, SECONDS_WHILE_OTHERS_DECODE, 512),
        (0, 2100, SECONDS_ALONE, 1024),
        (0, 2100, 60.0, 2048),
    ],
)
def test_chunk_is_as_long_as_memory_and_time_allow(position: int, speed: float, seconds: float, tokens: int) -> None:
    assert chunk_tokens(position, speed, seconds) == tokens
