import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine.scheduling import SECONDS_ALONE, SECONDS_WHILE_OTHERS_DECODE, chunk_tokens

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
    ("position", "tokens"),
    [(0, 2048), (8191, 2048), (8192, 1024), (20479, 1024), (20480, 512), (10**6, 512)],
)
def test_memory_bounds_a_fast_machine(position: int, tokens: int) -> None:
    assert chunk_tokens(position, 1e9) == tokens


@pytest.mark.parametrize("position", [0, 5000, 50_000])
def test_unknown_speed_is_taken_for_slow(position: int) -> None:
    assert chunk_tokens(position, 0) == 512


@pytest.mark.parametrize(("speed", "tokens"), [(1, 256), (1024, 256), (2047, 256), (2048, 512), (8000, 1792)])
def test_time_bounds_a_slow_machine(speed: float, tokens: int) -> None:
    assert chunk_tokens(0, speed, 0.25) == tokens


@pytest.mark.parametrize(
    ("seconds", "tokens"), [(SECONDS_WHILE_OTHERS_DECODE, 512), (SECONDS_ALONE, 1024), (60.0, 2048)]
)
def test_more_time_is_a_longer_chunk_up_to_what_memory_allows(seconds: float, tokens: int) -> None:
    assert chunk_tokens(0, 2100, seconds) == tokens
