from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.process.checkup import State
from cache_service.doctor import disk_space, judge_space
from cache_service.tiers.limits import GIB, DiskLimits

sizes = st.integers(0, 1 << 50)


@pytest.mark.parametrize(
    ("free", "limits", "state"),
    [
        (100 * GIB, DiskLimits(), State.OK),
        (GIB - 1, DiskLimits(), State.PROBLEM),
        (GIB + 1, DiskLimits(), State.WARNING),
        (100 * GIB, DiskLimits(99 * GIB), State.OK),
        (100 * GIB, DiskLimits(99 * GIB + 1), State.WARNING),
        (0, DiskLimits(free_bytes_floor=0), State.OK),
    ],
)
def test_what_is_free(free: int, limits: DiskLimits, state: State) -> None:
    found = judge_space(free, 0, limits)
    assert found.state is state
    assert state is State.OK or "AGENTMEM_STORE_" in found.advice


@given(free=sizes, used=sizes, warm=sizes.filter(bool) | st.none(), floor=sizes)
def test_a_problem_is_what_the_store_refuses_for(free: int, used: int, warm: int | None, floor: int) -> None:
    limits = DiskLimits(warm, floor)
    refused = limits.fixed(used, free).refusal(used, free, lambda: 0, "/data")
    assert (judge_space(free, used, limits).state is State.PROBLEM) == ("have to stay" in refused)


def test_what_is_there_is_counted_as_the_store_counts_it(data: Path) -> None:
    kv = sum(path.stat().st_size for folder in ("blocks", "windows") for path in (data / folder).rglob("*.safetensors"))
    kv += sum(path.stat().st_size for path in (data / "quarantine").iterdir())
    found, *_ = disk_space(data, DiskLimits(free_bytes_floor=0), held=False)
    assert found.facts["used_bytes"] == kv > 0
