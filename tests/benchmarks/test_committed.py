"""What the committed results say: each benchmark's tables over its own files, and the figures that README quotes."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.results import RESULTS
from benchmarks.tables import Table

FILES = sorted(RESULTS.glob("*.json"))


def tables(path: Path) -> list[Table]:
    found = json.loads(path.read_text())
    made: list[Table] = importlib.import_module(NAMES[found["benchmark"]]).tables(found["figures"])
    return made


def cells(name: str) -> dict[str, tuple[str, ...]]:
    """All rows of a file's tables by their first cell; of equal ones the first."""
    rows = [row for table in tables(RESULTS / f"{name}.json") for row in table.rows]
    return {row[0]: tuple(row[1:]) for row in reversed(rows)}


def test_there_are_files() -> None:
    assert len(FILES) >= 13


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_has_its_tables(path: Path) -> None:
    made = tables(path)
    assert made
    for table in made:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert all(row[0] for row in table.rows)


def test_blas() -> None:
    assert cells("blas-demo-cpu")["times as fast"][1].startswith("9.5x (")


def test_engine() -> None:
    found = cells("engine-llama-3.1-8b-gpu")
    assert (found["1024"][0], *found["1024"][4:6]) == ("7200", "1.04x", "0.87x")
    assert (found["32768"][0], *found["32768"][4:6]) == ("7143", "1.70x", "0.93x")
    assert found["8 x 8192"][0] == "216"
    assert found["8 x 8192"][4] == "1.46x"
    assert found["an agent of 16384 tokens goes on, from memory"][0] == "5.3 ms"


def test_gateway() -> None:
    assert cells("gateway-llama-3.1-8b-gpu")["grpc"][1].startswith("1.002 (")
    assert cells("gateway-llama-3.1-8b-gpu")["http"][1].startswith("1.004 (")
    assert cells("gateway-demo-gpu")["worker"][0].startswith("2346 (")


def test_lookahead() -> None:
    found = cells("lookahead-demo-cpu")
    assert [found[f"round robin, {way}"][1] for way in ("last use", "hints", "hints and prefetch")] == [
        "0%",
        "33%",
        "100%",
    ]
    assert found["hub, on paper: Belady"][1] == "80%"


def test_store() -> None:
    found = cells("store")
    assert found["OpenCache: the ledger and 16 files"] == ("1.6 ms", "2.3 ms")
    assert found["ForkAgent at 64K tokens"] == ("6.2 ms", "17.1 ms")
    assert found["memory while ListAgents pages through all"] == ("100 → 100 MB",)
    assert found["32 files read, hashed and checked over read only, from the page cache"] == ("1.4x",)


def test_swap() -> None:
    assert cells("swap")["2072"] == ("45 ms", "67 ms", "170 ms", "1701 ms", "10.0x (9.2–10.2)")
    assert cells("swap-llama-3.1-8b-gpu")["two models over one"][0].startswith("0.89x (")


def test_transfer() -> None:
    assert cells("transfer")["read"][2] == "7.3x"


def test_working_memory() -> None:
    found = cells("working-memory-demo-cpu")
    assert found["10, killed"][:3] == ("30 of 30", "20 of 20", "0")
    assert found["20, re-prefilled"][4:8] == ("181,129", "3119 ms", "15386 ms", "153 s")
