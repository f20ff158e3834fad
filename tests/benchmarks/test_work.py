"""Agents at work: their answers are what was asked for, and rates are of the time that they take together."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, work
from benchmarks.peers.scenarios import TurnSizes
from benchmarks.work import claims, figures_of, tables

SIZES = TurnSizes(context=200, new=20, generated=4, turns=3)


def turn(first: float) -> dict[str, Any]:
    return {"first": first, "prompt": 100, "cached": 90, "gaps": [0.1, 0.2, 0.3]}


def measured(rate: float, first: float) -> dict[str, Any]:
    seconds = 4 * SIZES.generated / rate
    return figures_of(SIZES, {"seconds": seconds, "turns": [[turn(first), turn(first)], [turn(first), turn(first)]]})


def figures(ours: float, theirs: float, *, first: float, backend: str = "gpu") -> dict[str, Any]:
    by_way = {
        "agentmem, hot": measured(ours, first),
        "mlx_lm.server, hot": measured(theirs, 0.1),
    }
    return {
        "backend": backend,
        "sizes": {"context": 1, "new": 1, "generated": 4, "turns": 3},
        "measured": {"32": by_way},
    }


def test_rates_are_of_all_tokens_over_the_time_of_all() -> None:
    found = figures_of(SIZES, {"seconds": 2.0, "turns": [[turn(0.1), turn(0.3)], [turn(0.2), turn(0.4)]]})
    assert found["tokens_per_second"] == 4 * SIZES.generated / 2.0
    assert (found["first"]["50"], found["gap"]["50"], found["from_memory"]) == (0.25, 0.2, 0.9)


def test_claims_are_of_the_peer_and_first_tokens_on_a_gpu() -> None:
    good, bad = figures(61.0, 50.0, first=0.3), figures(59.0, 60.0, first=0.5)
    assert [claim.met for claim in claims(good)] == [True, True]
    assert [claim.met for claim in claims(bad)] == [False, False]
    assert len(claims(figures(61.0, 50.0, first=0.3, backend="cpu"))) == 1
    assert [row[0] for row in tables(good)[0].rows] == ["agentmem, hot", "mlx_lm.server, hot"]


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
