"""Agents at work: their answers are what was asked for, and rates are of the time that they take together."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, work
from benchmarks.peers.scenarios import TurnSizes
from benchmarks.work import figures_of

SIZES = TurnSizes(context=200, new=20, generated=4, turns=3)


def turn(first: float) -> dict[str, Any]:
    return {"first": first, "prompt": 100, "cached": 90, "gaps": [0.1, 0.2, 0.3]}


def test_rates_are_of_all_tokens_over_the_time_of_all() -> None:
    found = figures_of(SIZES, {"seconds": 2.0, "turns": [[turn(0.1), turn(0.3)], [turn(0.2), turn(0.4)]]})
    assert found["tokens_per_second"] == 4 * SIZES.generated / 2.0
    assert (found["first"]["50"], found["gap"]["50"], found["from_memory"]) == (0.25, 0.2, 0.9)


@pytest.mark.slow
async def test_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents have what they said in memory, and after a SIGKILL on disk."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    asked = ["--model", "demo", "--agents", "2", "--turns", "3", "--context", "300", "--new", "20", "--generated", "8"]
    arguments: argparse.Namespace = work.parser().parse_args(asked)
    await work.main(arguments)
    [by_way] = json.loads((tmp_path / "work-demo-cpu.json").read_text())["figures"]["measured"].values()
    servers = [f"{name}, {way}" for name in ("agentmem", "mlx_lm.server") for way in ("hot", "warm")]
    assert list(by_way) == servers
    assert by_way["agentmem, hot"]["from_memory"] > 0.85
    assert by_way["agentmem, warm"]["from_memory"] > 0.85
    for way in by_way.values():
        assert way["tokens_per_second"] > 0
