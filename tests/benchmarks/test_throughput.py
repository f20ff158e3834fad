"""Throughput: arithmetic, and what is said of it."""

import asyncio
import json
import signal
import sys
import time
from typing import Any

import pytest

from benchmarks.decoding_clients import ProcessorMeter, Stream, steady, together
from benchmarks.plots import drawable, exact
from benchmarks.throughput import check, claims, context_of, figures_of, plots, tables


def turn(first: float, total: float) -> dict[str, Any]:
    return {"first": first, "decoding": total - first, "total": total, "generated": 11, "prompt": 60, "cached": {}}


def sample(speed: float, share: float) -> dict[str, Any]:
    """Two agents of 11 tokens each, done after 2 and 4 seconds."""
    return {
        "together": {"tokens_per_second": speed, "share": share, "tokens": 20, "worker_cpu_seconds": 3.0},
        "wall": 4.0,
        "turns": [turn(1.0, 2.0), turn(2.0, 4.0)],
        "cpu_seconds": {"clients": 0.22, "gateway": 0.44, "worker": 2.2, "store": 0.0},
    }


def figures(share: float = 0.8) -> dict[str, Any]:
    engine = [{"tokens_per_second": speed, "cpu_seconds": 2.2} for speed in (100.0, 50.0, 200.0)]
    mine = [sample(speed, share) for speed in (90.0, 60.0, 180.0)]
    of_two = figures_of({"engine": engine, "warm": mine, "cold": mine}, 2, 11)
    measured = {"1024": {"context": 1024, "agents": {"2": of_two}}}
    found: dict[str, Any] = json.loads(json.dumps({"tokens": 11, "measured": measured}))
    return found


def test_speeds() -> None:
    warm = figures()["measured"]["1024"]["agents"]["2"]["warm"]
    assert warm["end_to_end"]["median"] == 22 / 4
    assert warm["end_to_end_per_agent"]["max"] == 11 / 2
    assert warm["decode_per_agent"]["samples"][:2] == [10.0, 5.0]
    assert warm["decode_ratio"]["samples"] == pytest.approx([0.9, 1.2, 0.9])
    assert warm["cpu_seconds_per_token"]["gateway"]["median"] == pytest.approx(0.02)
    assert warm["decode_cpu_seconds_per_token"]["median"] == pytest.approx(0.15)
    assert warm["cpu_seconds_beyond_engine"]["median"] == pytest.approx(0.05)


def test_tables_and_claims() -> None:
    [speed, beyond] = claims(figures())
    assert (speed.value, speed.met) == (pytest.approx(0.9), False)
    assert (beyond.value, beyond.unit, beyond.met) == (pytest.approx(50.0), " ms", False)
    for table in tables(figures()):
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_plots() -> None:
    [plot] = plots(figures())
    assert plot.series == {f"{way}, 1,024 tokens of context": [exact(2, 5.5)] for way in ("warm", "cold")}
    assert drawable(plots({"tokens": 11, "measured": {}})) == []


def test_agents_that_hardly_met_have_no_speed_of_decoding() -> None:
    found = figures(share=0.1)
    assert "decode" not in found["measured"]["1024"]["agents"]["2"]["cold"]
    [claim] = claims(found)
    assert not claim.met
    for table in tables(found):
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_together_is_from_the_last_second_token_to_the_first_end() -> None:
    streams = [Stream([0.0, 1.0, 2.0, 3.0, 4.0], 5), Stream([2.0, 3.0, 4.0, 5.0, 6.0], 5)]
    found = together(streams, 5)
    assert (found["seconds"], found["tokens"], found["tokens_per_second"], found["share"]) == (1.0, 2.0, 2.0, 0.2)
    with pytest.raises(RuntimeError, match="hardly"):
        steady(streams, 5)
    with pytest.raises(RuntimeError, match="early"):
        together(streams, 6)


def test_agents_that_never_met() -> None:
    found = together([Stream([0.0, 1.0], 2), Stream([2.0, 3.0], 2)], 2)
    assert (found["tokens_per_second"], found["share"]) == (0.0, 0.0)


async def test_processor_time_of_another_process_in_a_span() -> None:
    code = "import time\nwhile True:\n  end = time.process_time() + 0.01\n  while time.process_time() < end: pass\n"
    busy = await asyncio.create_subprocess_exec(sys.executable, "-c", f"{code}  time.sleep(0.03)")
    try:
        meter = ProcessorMeter(busy.pid)
        async with meter.running():
            began = time.monotonic()
            await asyncio.sleep(1.0)
            middle = time.monotonic()
            busy.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.5)
    finally:
        busy.kill()
        await busy.wait()
    end = time.monotonic()
    assert meter.between(began, middle) > 0.0
    assert meter.between(began, end) == pytest.approx(meter.between(began, middle), abs=0.05)
    assert meter.between((began + middle) / 2, middle) < meter.between(began, middle)


def test_a_context_leaves_room_for_the_turn() -> None:
    assert context_of(1024, 8192, 128) == 1024
    assert context_of(8192, 8192, 128) == 8192 - 128 - 50
    with pytest.raises(ValueError, match="no room"):
        context_of(8192, 100, 50)


def test_a_turn_that_was_something_else_is_refused() -> None:
    check([turn(1.0, 2.0)], 60, 11, {})
    with pytest.raises(RuntimeError, match="instead of"):
        check([turn(1.0, 2.0)], 60, 11, {"warm": 10})
