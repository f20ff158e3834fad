"""The benchmark of swaps, once."""

import pytest

from benchmarks.models import DEMO
from benchmarks.swap import by_stage, measure, tables


@pytest.mark.slow
async def test_an_agent_comes_back_with_its_model() -> None:
    found = await measure([f"a={DEMO}", f"b={DEMO}"], [64], 1, ["--no-quality-check"])
    firsts, spent = tables(found)
    assert len(firsts.rows) == len(spent.rows) == 1
    assert found["swaps"]["64"]["swap"]["median"] > found["swaps"]["64"]["hot"]["median"] > 0


def test_waiting_for_others_to_leave_is_the_last_wait() -> None:
    stages = [("wait", 1.0), ("fetch", 2.0), ("wait", 3.0), ("read", 5.0), ("pool", 6.0), ("ready", 8.0)]
    assert by_stage(stages, 0.5) == {"open": 2.5, "leave": 2.0, "read": 1.0, "pool": 2.0}
