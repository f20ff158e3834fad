"""Ratios are of values that were measured one after the other, and what failed is said and not counted."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.peers.report import ratio, tables

OURS, THEIRS, ABSENT = "agentmem", "mlx_lm.server", "llama.cpp"
FIRST, SPEED = "next turn: first token", "answers, tokens/s"


def sample(first: list[float | None], problems: list[str] | None = None) -> dict[str, Any]:
    turns = [{"first": value, "prompt": 100, "cached": 50} for value in first]
    return {"figures": {FIRST: first}, "problems": problems or [], "turns": turns}


def figures(ours: list[float | None], theirs: list[float | None], problems: list[str] | None = None) -> dict[str, Any]:
    found = {
        "asked": {
            **{"model": "m", "threads": 2, "context": 512, "new": 64, "generated": 24, "turns": 6},
            **{"agents": 8, "holds": 3, "rounds": 2},
        },
        "servers": {OURS: "agentmem 1", THEIRS: "mlx-lm 1"},
        "missing": {ABSENT: "no llama-server in PATH"},
        "starts": {OURS: [5.0], THEIRS: [2.0]},
        "scenarios": {"round-robin": {OURS: [sample(ours)], THEIRS: [sample(theirs, problems)]}},
    }
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


def test_ratios_are_of_pairs_and_above_one_where_agentmem_is_faster() -> None:
    found = figures([0.1, 0.2, 0.4], [0.3, 0.2, 0.8])
    compared, [row] = tables(found)[0], tables(found)[1].rows
    assert row == (FIRST, "200 ms (100–400)", "300 ms (200–800)", "2.00x")
    assert "agentmem 50%, mlx_lm.server 50%" in tables(found)[1].note
    assert compared.rows[-1] == (ABSENT, "not here: no llama-server in PATH", "")


def test_of_speeds_more_is_faster() -> None:
    samples = {name: [{"figures": {SPEED: [value]}}] for name, value in ((OURS, 30.0), (THEIRS, 20.0))}
    assert ratio(samples, THEIRS, SPEED) == 1.5


def test_what_failed_is_said_and_takes_its_pair_out() -> None:
    found = figures([0.1, 0.2, 0.4], [0.3, None, 0.8], ["HTTP 500"])
    table = tables(found)[1]
    assert table.rows[0] == (FIRST, "200 ms (100–400)", "550 ms (300–800), 1 of 3 failed", "2.50x")
    assert "Not as it should be: mlx_lm.server: HTTP 500 (1)." in table.note
