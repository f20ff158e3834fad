"""The output of `agentmem up`: at a real terminal a status, warnings and a live line, with the log in a file."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path

import psutil
import pytest

from agentmem.process import logs
from gateway.cli.up.log_file import LOG
from gateway.cli.up.output import warning_of
from tests import blas
from tests.gateway.running import ANY_PORT
from tests.gateway.secured import add_key
from tests.terminal import CTRL_C, terminal

UP = ("-m", "gateway.cli.main", "up")
ODD = '{"level": ["W"], "service": 1, "message": 2}'
CLEAR = "warning, gateway: keys and prompts travel in clear text"


@pytest.fixture(autouse=True)
def settings(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP", "GRPC", "METRICS"):
        monkeypatch.setenv(f"AGENTMEM_UP_{name}", ANY_PORT)
    monkeypatch.setenv("AGENTMEM_UP_DATA", str(run_dir))
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    monkeypatch.setenv(blas.VARIABLE, "1")


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    ("level", "said"),
    [
        (logging.INFO, ""),
        (logging.WARNING, "warning, worker: the disk is full"),
        (logging.ERROR, "error, worker: the disk is full"),
        (logging.CRITICAL, "error, worker: the disk is full"),
    ],
)
def test_warnings_are_found_in_a_log(style: str, level: int, said: str) -> None:
    record = logging.LogRecord("any", level, "any.py", 1, "the disk is full", (), None)
    assert warning_of(logs.formatter("worker", style).format(record)) == said


@pytest.mark.parametrize("line", ["", "Traceback (most recent call last):", "{", "[1]", "W x", ODD])
def test_other_lines_are_no_warnings(line: str) -> None:
    assert warning_of(line) == ""


@pytest.mark.slow
async def test_a_terminal_shows_a_status_and_the_log_is_in_a_file(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTMEM_UP_HTTP", "0.0.0.0:0")
    monkeypatch.setenv("AGENTMEM_UP_KEYS", str(run_dir / "keys.json"))
    add_key(run_dir)
    log = run_dir / LOG
    async with terminal(*UP, "--model", "demo", columns=200) as shown:
        await shown.until("starting Agentmem: ")
        said = await shown.until("web UI   http://0.0.0.0:", "data  ", "model    demo", f"log      {log}", "Ready.")
        assert all(f"{name} (pid " in said for name in ("store", "worker", "gateway")) and CLEAR in said
        (worker,) = [
            each for each in psutil.Process(shown.process.pid).children() if "inference_service" in each.cmdline()
        ]
        worker.kill()
        await shown.until("worker ended with signal SIGKILL; starting it again", "starting Agentmem: worker")
        await shown.until("worker ready again")
        shown.type(CTRL_C)
        await shown.until("stopping; requests that run have", "stopped\n")
        assert await shown.ended() == 0
        screen = shown.raw.decode()
    assert " I " not in screen and screen.count(CLEAR) == 1
    written = log.read_text()
    assert " I worker model loaded" in written and " I up service ready again" in written
    assert not list(run_dir.glob("store.db-wal")), "the store has ended in order"


@pytest.mark.slow
async def test_a_failed_start_says_where_its_log_is(run_dir: Path) -> None:
    (run_dir / "store.db").write_text("no database, and longer than a header of one" * 10)
    async with terminal(*UP, "--log-format", "json", columns=200) as shown:
        said = await shown.until("store ended with status 1; it wrote:", f"The log is {run_dir / LOG}.")
        assert await shown.ended() == 1
    assert "store.db" in said
    lines = [json.loads(line) for line in (run_dir / LOG).read_text().splitlines() if line.startswith("{")]
    assert "service ended" in [line["message"] for line in lines if line["service"] == "up"]


@pytest.mark.slow
async def test_a_terminal_that_cannot_draw_gets_lines(run_dir: Path) -> None:
    async with terminal(*UP, "--model", "demo", columns=200, TERM="dumb") as shown:
        await shown.until(" I up service started", "Ready.")
        shown.process.send_signal(signal.SIGTERM)
        await shown.until("stopped\n")
        assert await shown.ended() == 0
        assert b"\x1b[K" not in shown.raw
    assert not (run_dir / LOG).exists()
