"""The plugin that measures cases: what fails a run, and what a quick run leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = """
[pytest]
markers = essential
    sampled
    slow
"""
CASES = """
import subprocess, sys, time
import pytest
from tests import costs

BURN = "from tests import costs\\nfor _ in range(5): costs._yardstick()"

@pytest.fixture(scope="module")
def shared():
    exec(BURN)

def test_cheap():
    pass

def test_waits():
    time.sleep(1.2)

def test_computes():
    exec(BURN)

def test_starts_a_process():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_shares(shared):
    pass

def test_keeps():
    with costs.kept():
        exec(BURN)

@pytest.mark.essential("it must hold")
def test_essential():
    exec(BURN)

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.parametrize("case", "abcd")
@pytest.mark.slow("b", "d")
def test_some_are_slow(case):
    pass

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [*range(6), "a fault"])
def test_sampled(case):
    pass
"""


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_cases.py").write_text(CASES)
    home = folder / "home"
    (home / ".cache" / "agentmem").mkdir(parents=True, exist_ok=True)  # a user's first run is not judged
    plugins = ("-p", "tests.costs", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin")
    return subprocess.run(
        (sys.executable, "-m", "pytest", *plugins, "-v", *flags, str(folder)),
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.essential("what this tier promises")
@pytest.mark.slow("0")
@pytest.mark.parametrize("processes", ["0", "2"])
def test_dear_cases_fail_a_quick_run(tmp_path: Path, processes: str) -> None:
    done = run(tmp_path, "--quick", "--cost-limit=0.4", f"--costs={tmp_path}/costs", "-n", processes, "-k", "not some")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    named = done.stdout.partition("processor time")[2]
    assert all(f"test_{name}" in named for name in ("computes", "starts_a_process")), named
    assert not [name for name in ("cheap", "waits", "shares", "keeps", "essential") if f"test_{name}" in named], named
    assert " failed" not in done.stdout
    first, *_ = (tmp_path / "costs").read_text().splitlines()
    assert float(first.split()[0]) > 0.4


@pytest.mark.essential("what this tier promises")
def test_slow_cases_are_left_out_and_samples_taken(tmp_path: Path) -> None:
    whole, quick, again = (
        {line for line in run(tmp_path, "--collect-only", "-q", "-q", *flags).stdout.splitlines() if "::" in line}
        for flags in ((), ("--quick",), ("--quick",))
    )
    assert quick == again
    left = {name.partition("::test_")[2] for name in whole - quick}
    sampled = {name for name in left if name.startswith("sampled")}
    assert left - sampled == {"slow", "some_are_slow[b]", "some_are_slow[d]"}
    assert len(sampled) == 4 and "sampled[a fault]" not in sampled


@pytest.mark.slow
def test_shards_are_all_together(tmp_path: Path) -> None:
    whole, *parts = (
        {line for line in run(tmp_path, "--collect-only", "-q", "-q", *flags).stdout.splitlines() if "::" in line}
        for flags in ((), *((f"--shard={part}/3",) for part in (1, 2, 3)))
    )
    assert set.union(*parts) == whole
    assert sum(map(len, parts)) == len(whole)
