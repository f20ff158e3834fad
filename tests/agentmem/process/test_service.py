from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.service import ServiceManager
from tests.service_manager import Heard

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["well"], 0, ""),
        (["at-once"], 7, ""),
        (["well", "--log-format", "xml"], 2, "agentmem-test: log_format: 'xml' is not allowed: text or json\n"),
        (["setting"], 2, "agentmem-test: no such model\n"),
        (["address"], 2, "agentmem-test: taken\n"),
        (["own"], 1, "agentmem-test: no such directory\n"),
        (["refused"], 1, "agentmem-test: the model can't\n"),
        (["passing"], 75, "agentmem-test: the store does not answer\n"),
    ],
)
def test_how_a_process_ends(arguments: list[str], status: int, told: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stderr) == (status, told)


@pytest.mark.parametrize(("how", "error"), [("bug", "ValueError: never seen"), ("internal", "incident 1")])
def test_a_bug_is_logged_with_its_traceback(how: str, error: str) -> None:
    ended = run(how)
    assert ended.returncode == 70
    assert "C test the test failed" in ended.stderr
    assert "Traceback" in ended.stderr and error in ended.stderr


@pytest.mark.parametrize(("how", "status"), [("talkative", 0), ("setting", 2), ("refused", 1), ("bug", 70)])
def test_who_reads_the_log_does_not_change_how_a_process_ends(how: str, status: int) -> None:
    """As in `agentmem-worker 2>&1 | tee log`, where Ctrl-C ends tee as well."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as dead:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.agentmem.process.serve", how], cwd=ROOT, stdout=dead, stderr=dead, check=False
        )
    assert ended.returncode == status


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.agentmem.process.serve", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


ABSTRACT = pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names"))


@pytest.mark.parametrize("abstract", [False, ABSTRACT])
def test_what_is_said(run_dir: Path, abstract: bool) -> None:
    with Heard(None if abstract else run_dir) as heard:
        manager = ServiceManager(heard.address)
        manager.status("loading\nthe model")
        manager.ready("serving")
        manager.stopping()
        assert heard.listen() == [
            *("STATUS=loading the model", "READY=1", "STATUS=serving", "STOPPING=1", "STATUS=draining")
        ]


async def test_nobody_wants_to_hear() -> None:
    manager = ServiceManager.of_this_process({})
    manager.ready("serving")
    manager.stopping()
    await manager.keep_alive(lambda: True)  # returns


def test_a_manager_that_has_gone_does_no_harm(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager(str(run_dir / "gone")).ready("serving")
    assert [record.message for record in caplog.records] == ["the service manager takes no message"]


def test_an_address_of_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager.of_this_process({"NOTIFY_SOCKET": "vsock:2:1234"}).ready("serving")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_children_do_not_speak_for_their_parent() -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager.of_this_process(environment)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    ("pid", "pings"),
    [(str(os.getpid()), True), ("", True), (str(os.getppid()), False)],
    ids=["ours", "anybody's", "another's"],
)
async def test_the_watchdog_of_this_process_only(
    run_dir: Path, pid: str, pings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulthandler, "enable", lambda: None)  # pytest has it enabled
    with Heard(run_dir) as heard:
        environment = {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": pid}
        task = asyncio.create_task(ServiceManager.of_this_process(environment).keep_alive(lambda: True))
        if pings:
            await heard.wait_for("WATCHDOG=1")
            await heard.wait_for("WATCHDOG=1")
            task.cancel()
        else:
            await task
            assert heard.listen() == []


async def test_what_is_not_alive_does_not_say_so(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulthandler, "enable", lambda: None)
    asked = asyncio.Semaphore(0)

    def alive() -> bool:
        asked.release()
        return False

    with Heard(run_dir) as heard:
        task = asyncio.create_task(ServiceManager(heard.address, 0.003).keep_alive(alive))
        for _ in range(3):
            await asked.acquire()
        task.cancel()
        assert heard.listen() == []


def test_a_stream_socket_is_not_waited_for(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(run_dir / "stream"))
        ServiceManager(str(run_dir / "stream")).ready("serving")
    assert "takes no message" in caplog.text
