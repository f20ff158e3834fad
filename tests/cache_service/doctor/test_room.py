from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.checkup import State
from cache_service.doctor.room import judged, space
from cache_service.limits import GIB, Limits

sizes = st.integers(0, 1 << 50)


@pytest.mark.parametrize(
    ("free", "limits", "state"),
    [
        (100 * GIB, Limits(), State.OK),
        (GIB - 1, Limits(), State.PROBLEM),
        (GIB + 1, Limits(), State.WARNING),
        (100 * GIB, Limits(99 * GIB), State.OK),
        (100 * GIB, Limits(99 * GIB + 1), State.WARNING),
        (0, Limits(free_bytes_floor=0), State.OK),
    ],
)
def test_what_is_free(free: int, limits: Limits, state: State) -> None:
    found = judged(free, 0, limits)
    assert found.state is state
    assert state is State.OK or "AGENTMEM_STORE_" in found.advice


@given(free=sizes, used=sizes, warm=sizes.filter(bool) | st.none(), floor=sizes)
def test_a_problem_is_what_the_store_refuses_for(free: int, used: int, warm: int | None, floor: int) -> None:
    limits = Limits(warm, floor)
    refused = limits.fixed(used, free).refusal(used, free, 0, "/data")
    assert (judged(free, used, limits).state is State.PROBLEM) == (refused is not None and "have to stay" in refused)


def test_what_is_there_is_counted_as_the_store_counts_it(data: Path) -> None:
    kv = sum(path.stat().st_size for folder in ("blocks", "windows") for path in (data / folder).rglob("*.safetensors"))
    kv += sum(path.stat().st_size for path in (data / "quarantine").iterdir())
    (found,) = space(data, Limits(free_bytes_floor=0), held=False)
    assert found.facts["used_bytes"] == kv > 0
