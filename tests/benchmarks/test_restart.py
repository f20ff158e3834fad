"""Sums of the restart benchmark."""

import json
from typing import Any

from benchmarks.restart import KEPT, NOTHING, figures, tables


def _way(ready: float, answered: float) -> dict[str, Any]:
    return {"ready": ready, "first_answered": answered - 1, "all_answered": answered, "after_ready": answered - ready}


def test_ratios_are_within_a_sample() -> None:
    asked = {"agents": 2, "length": 4096, "new": 32, "samples": 2, "model": "demo"}
    samples = [{KEPT: _way(6, 8), NOTHING: _way(6, 16)}, {KEPT: _way(10, 11), NOTHING: _way(12, 22)}]
    found = json.loads(json.dumps(figures(asked, samples)))
    assert found["times_as_early"]["all_answered"]["samples"] == [2.0, 2.0]
    assert found["times_as_early"]["after_ready"]["samples"] == [5.0, 10.0]
    (moments,) = tables(found)
    assert moments.rows[2] == ("all 2 agents have answered", "9.50 s (8.00–11.00)", "19.00 s (16.00–22.00)")
    assert "2.0 times as early, 7.5 times from the ready gateway on" in moments.note
