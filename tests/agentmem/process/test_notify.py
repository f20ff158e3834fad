from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
import sys
from pathlib import Path

import pytest

from agentmem.process.service import ServiceManager
from tests.service_manager import Heard

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
