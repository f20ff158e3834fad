"""Sums of the start benchmark."""

import json
from typing import Any

import pytest

from benchmarks.live import scratch
from benchmarks.starting import HERE, OTHER, PROCESSES, figures, start, tables
from benchmarks.starts import PARTS

ASKED = {"model": "demo", "samples": 2, "against": ""}


def _start(first_token: float, *, here: bool = True) -> dict[str, Any]:
    return {
        **{"ready": first_token - 0.5, "first_token": first_token, "processor": dict.fromkeys(PROCESSES, 1.5)},
        "parts": dict.fromkeys(PARTS, 0.25) if here else {},
    }


@pytest.mark.slow
async def test_a_start_ends_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    with scratch() as root:
        found = await start(root, "demo", None)
    assert 0 < found["ready"] < found["first_token"]
    assert sum(found["parts"].values()) == pytest.approx(found["ready"], abs=0.5)
    assert set(found["processor"]) == set(PROCESSES)
    assert all(seconds > 0 for seconds in found["processor"].values())


def test_ratios_are_within_a_sample() -> None:
    samples = [{HERE: _start(2), OTHER: _start(4, here=False)}, {OTHER: _start(9, here=False), HERE: _start(3)}]
    first = {HERE: _start(8), OTHER: _start(12, here=False)}
    found = json.loads(json.dumps(figures(ASKED, first, samples)))
    assert found["times_as_early"]["samples"] == [2.0, 3.0]
    moments, parts, processor = tables(found)
    assert moments.columns == ("", HERE, OTHER)
    assert moments.rows[1] == ("the first token", "2.50 s (2.00–3.00)", "6.50 s (4.00–9.00)")
    assert moments.rows[3] == ("the first token, over an empty directory", "8.00 s", "12.00 s")
    assert "2.50 times as early" in moments.note
    assert [row[0] for row in parts.rows] == list(PARTS.values())
    assert [row[0] for row in processor.rows] == list(PROCESSES)


def test_one_checkout_alone_has_no_ratio() -> None:
    found = figures(ASKED, {HERE: _start(8)}, [{HERE: _start(2)}])
    assert "times_as_early" not in found
    assert all(len(row) == 2 for table in tables(found) for row in table.rows)
