"""`agentmem doctor` as a process, with all of its halves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from gateway.cli.main import main

from ...running import ANY_PORT

COMMAND = [sys.executable, "-m", "gateway.cli.main", "doctor"]
DOORS = ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ""]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def by_state(told: str, state: str) -> dict[str, Any]:
    return {each["check"]: each for each in json.loads(told)["findings"] if each["state"] == state}


@pytest.mark.slow
def test_a_healthy_machine_has_no_problems(run_dir: Path) -> None:
    told = run("--data", str(run_dir / "a" / "data"), *DOORS)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stderr == "", "nothing but the table where there is no terminal"
    assert told.stdout.endswith(", 0 problems\n")
    checks = (
        "versions",
        "run directory",
        "ports",
        "file system",
        "disk speed",
        "database",
        "backend",
        "memory",
        "demo",
    )
    assert all(name in told.stdout for name in checks)
    assert os.listdir(run_dir) == []


@pytest.mark.slow
def test_each_fault_is_found_and_none_hides_another(run_dir: Path) -> None:
    data = run_dir / "data"
    data.mkdir()
    data.chmod(0o755)  # whatever the umask
    (data / "store.db").write_bytes(b"\xff" * 4096)
    (run_dir / "model").mkdir()
    (run_dir / "model" / "config.json").write_text('{"model_type": "lla')
    config = run_dir / "config.toml"
    config.write_text(
        f"[store]\nfree_bytes_floor = {1 << 60}\nwarm_bytes = 100_000\n[up]\nrun_dir = '{run_dir}/{'x' * 120}'\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = ["--http", f"127.0.0.1:{server.getsockname()[1]}"]
        model = ["--model", f"broken={run_dir}/model"]
        before = sorted(path.stat().st_mtime_ns for path in run_dir.rglob("*"))
        told = run("--json", "--data", str(data), *DOORS[2:], *http, *model, AGENTMEM_CONFIG=str(config))
    assert told.returncode == 1, told.stderr
    found = by_state(told.stdout, "problem")
    assert set(found) == {
        "run directory",
        "ports",
        "permissions",
        "disk space",
        "database",
        "model broken",
        "model demo",
    }
    assert all(each["advice"] for each in found.values())
    assert "takes no more than 95.0 kB" in found["model demo"]["found"], "which by itself fits"
    assert "model demo" in by_state(told.stdout, "ok")
    assert sorted(path.stat().st_mtime_ns for path in run_dir.rglob("*")) == before
    assert json.loads(told.stdout)["problems"] == 7 and json.loads(told.stdout)["well"] is False


@pytest.mark.parametrize("arguments", [["--grace", "never"], ["--http", "nowhere"]])
def test_settings_that_cannot_be_read(arguments: list[str]) -> None:
    told = CliRunner().invoke(main, ["doctor", *arguments])
    assert told.exit_code == 2 and told.stderr.startswith("Error: ") and told.stdout == ""


def test_help() -> None:
    told = CliRunner().invoke(main, ["doctor", "--help"])
    assert told.exit_code == 0 and "usage: agentmem doctor" in told.stdout and "--json" in told.stdout


INTERRUPTIBLE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs inherit that it is ignored
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_ctrl_c_leaves_nothing_behind(run_dir: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTIBLE, *COMMAND, "--data", str(run_dir), *DOORS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    known = psutil.Process(process.pid)
    while not (halves := known.children()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.communicate()[0] == ""
    psutil.wait_procs(halves, timeout=60)
    assert not any(half.is_running() for half in halves)
    assert os.listdir(run_dir) == []
