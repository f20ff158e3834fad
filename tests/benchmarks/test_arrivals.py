"""Prompts that arrive at once: who is measured, and what the table says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import arrivals


@pytest.mark.slow
def test_all_three_are_measured(tmp_path: Path) -> None:
    """In a process of its own, as it is run."""
    code = (
        "import sys, pathlib, runpy\n"
        "from benchmarks import results\n"
        f"results.RESULTS = pathlib.Path({str(tmp_path)!r})\n"
        "sys.argv = ['arrivals', 'demo', '--agents', '2', '--tokens', '20', '--samples', '1']\n"
        "runpy.run_module('benchmarks.arrivals', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("arrivals-demo-*.json")
    figures = json.loads(file.read_text())["figures"]
    assert set(figures["runs"]) == {"agentmem", "agentmem, one by one", "mlx-lm"}
    for run in figures["runs"].values():
        assert len(run["samples"]) == 1 and len(run["samples"][0]) == 2
        assert 0 < run["mean_seconds"] <= run["last_seconds"]


def test_the_table_compares_with_ours() -> None:
    runs = {"agentmem": 1.0, "agentmem, one by one": 2.5, "mlx-lm": 0.5}
    found = {name: {"mean_seconds": last / 2, "last_seconds": last} for name, last in runs.items()}
    [table] = arrivals.tables({"agents": 8, "tokens": 500, "counted": 5, "runs": found})
    assert table.rows[1] == ("agentmem, one by one", "1.250 s", "2.500 s", "2.50x")


@pytest.mark.parametrize(
    ("backend", "one_by_one", "met"), [("gpu", 2.1, [True]), ("gpu", 1.9, [False]), ("cpu", 1.1, [])]
)
def test_a_gpu_has_to_gain_by_a_batch(backend: str, one_by_one: float, met: list[bool]) -> None:
    runs = {"agentmem": {"last_seconds": 1.0}, "agentmem, one by one": {"last_seconds": one_by_one}}
    claims = arrivals.claims({"backend": backend, "agents": 8, "runs": runs})
    assert [claim.met for claim in claims] == met
