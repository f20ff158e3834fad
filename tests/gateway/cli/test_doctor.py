from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

from agentmem.process.checkup import Finding, State, ok, problem, unknown, warning
from gateway.cli import doctor as subject
from gateway.cli.doctor import findings_of, print_report, status, to_json
from gateway.cli.main import main

from ..running import ANY_PORT

MODULE = "tests.gateway.cli.checked"
FIRST = replace(ok("fine", "é\n"), check="first")
GOOD = replace(ok("fine"), check="a")
POOR = replace(warning("slow", "hurry"), check="b")
BAD = replace(problem("taken \x1b[31m[red]", "choose another"), check="ports")
BLIND = replace(unknown("hung", "look"), check="c")
COMMAND = [sys.executable, "-m", "gateway.cli.main", "doctor"]
DOORS = ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ""]


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


def descriptors() -> set[tuple[str, str]]:
    found = set()
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/dev/fd/{number}")))
    return found


async def said(how: str) -> list[Finding]:
    before, opened = children(), descriptors()
    found = await findings_of("it", MODULE, ["--grace=1"], {"HOW": how})
    assert children() == before, "it leaves no process behind"
    assert not descriptors() - opened, "nor an open file; those of earlier tests may close in the meantime"
    return found


async def test_all_findings_come_and_no_other_words() -> None:
    assert await said("says") == [FIRST, replace(warning("says", "do it"), check="second")]


async def test_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_SECONDS", 0.2)
    (last,) = await said("hangs")
    assert last.check in ("it", "it settings") and last.state is State.UNKNOWN and "0.2 s" in last.found


@pytest.mark.parametrize(("how", "words"), [("crashes", "SIGILL"), ("fails", "last words")])
async def test_process_that_dies_is_named_by_its_check(how: str, words: str) -> None:
    first, last = await said(how)
    assert first == FIRST and last.check == "second" and last.state is State.UNKNOWN
    assert words in last.found


@pytest.mark.parametrize(
    ("found", "ends"),
    [([], 0), ([GOOD, POOR], 0), ([GOOD, BAD, BLIND, BAD], 1), ([GOOD, POOR, BLIND], 2)],
)
def test_status_and_json_agree_with_the_findings(found: list[Finding], ends: int) -> None:
    told = json.loads(to_json(found))
    assert status(found) == ends and told["well"] == (ends == 0)
    assert [each["check"] for each in told["findings"]] == [each.check for each in found]
    assert told["problems"] == found.count(BAD) and told["not_checked"] == found.count(BLIND)


def test_table_has_all_of_it_and_steers_no_terminal() -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=120, markup=False, highlight=False), [GOOD, POOR, BAD])
    told = out.getvalue()
    assert "\x1b" not in told and r"taken \x1b[31m[red]" in told
    assert all(word in told for word in ("ok", "warning", "problem", "hurry", "choose another"))
    assert told.endswith("1 ok, 1 warning, 1 problem\n")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.slow
def test_healthy_machine_has_no_problems(run_dir: Path) -> None:
    told = run("--data", str(run_dir / "a" / "data"), *DOORS)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stderr == "", "nothing but the table where there is no terminal"
    assert told.stdout.endswith(", 0 problems\n")
    checks = ("versions", "BLAS", "ports", "file system", "disk space", "disk speed", "backend", "memory", "demo")
    assert all(name in told.stdout for name in checks)
    assert os.listdir(run_dir) == []


@pytest.mark.slow
def test_each_fault_is_found_and_none_hides_another(run_dir: Path) -> None:
    data = run_dir / "data"
    data.mkdir()
    (data / "letters").touch()
    (run_dir / "model").mkdir()
    (run_dir / "model" / "config.json").write_text('{"model_type": "lla')
    config = run_dir / "config.toml"
    config.write_text(f"[store]\nfree_bytes_floor = {1 << 60}\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = ["--http", f"127.0.0.1:{server.getsockname()[1]}"]
        model = ["--model", f"broken={run_dir}/model"]
        before = sorted(path.stat().st_mtime_ns for path in run_dir.rglob("*"))
        told = run("--json", "--data", str(data), *DOORS[2:], *http, *model, AGENTMEM_CONFIG=str(config))
    assert told.returncode == 1, told.stderr
    report: dict[str, Any] = json.loads(told.stdout)
    found = {each["check"]: each for each in report["findings"] if each["state"] == "problem"}
    assert set(found) == {"settings", "ports", "disk space", "model broken"}
    assert all(each["advice"] for each in report["findings"] if each["state"] != "ok")
    assert sorted(path.stat().st_mtime_ns for path in run_dir.rglob("*")) == before
    assert report["problems"] == 4 and report["not_checked"] == 1 and report["well"] is False


IMPATIENT = "from gateway.cli import doctor; doctor.MOST_SECONDS = 0.5; doctor.doctor()"


def test_report_comes_although_a_file_of_the_gateway_hangs(run_dir: Path) -> None:
    """Nobody writes to the pipe that is said to have the keys."""
    os.mkfifo(run_dir / "keys")
    arguments = ["--json", "--no-ui", "--keys", str(run_dir / "keys"), "--data", str(run_dir / "data"), *DOORS]
    told = subprocess.run(
        [sys.executable, "-c", IMPATIENT, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    hung = next(each for each in json.loads(told.stdout)["findings"] if each["state"] == "not checked")
    assert hung["check"] in ("gateway", "gateway settings", "settings") and "not ended after 0.5 s" in hung["found"]


@pytest.mark.parametrize("arguments", [["--grace", "never"], ["--http", "nowhere"]])
def test_settings_that_cannot_be_read(arguments: list[str]) -> None:
    assert "--json" in CliRunner().invoke(main, ["doctor", "--help"]).stdout
    told = CliRunner().invoke(main, ["doctor", *arguments])
    assert told.exit_code == 2 and told.stderr.startswith("Error: ") and told.stdout == ""


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
