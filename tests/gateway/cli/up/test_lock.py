import fcntl
import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from agentmem.console import Mistake
from gateway.cli.up.lock import LOCK_FILE, UpLock, may_hold


def take(directory: Path, patience: float = 0.0) -> UpLock:
    return UpLock(directory, patience, lambda _: None)


def test_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    first = take(tmp_path / "new" / "data")
    with pytest.raises(Mistake, match=rf"another agentmem up \(pid {os.getpid()}\) is running"):
        take(tmp_path / "new" / "data", patience=60)
    first.write(http="127.0.0.1:1", grpc="127.0.0.1:2")
    with pytest.raises(Mistake, match=rf"\(pid {os.getpid()}, http 127.0.0.1:1, grpc 127.0.0.1:2\)"):
        take(tmp_path / "new" / "data", patience=60)
    first.close()
    take(tmp_path / "new" / "data").close()


def test_waits_for_what_a_killed_one_left_behind(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    held = open(tmp_path / LOCK_FILE, "w")  # noqa: SIM115 - closed by the timer
    fcntl.flock(held, fcntl.LOCK_EX)
    held.write(json.dumps({"pid": ended.pid}))
    held.flush()
    with pytest.raises(Mistake, match=f"pid {ended.pid}"):
        take(tmp_path)
    reports: list[str] = []

    def report(line: str) -> None:
        reports.append(line)
        threading.Thread(target=held.close).start()

    UpLock(tmp_path, 60, report).close()
    assert len(reports) == 1
    assert json.loads((tmp_path / LOCK_FILE).read_text()) == {"pid": os.getpid()}


def test_a_process_that_got_the_number_later_is_not_the_holder(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as later, open(tmp_path / LOCK_FILE, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(json.dumps({"pid": later.pid}))
        held.flush()
        assert may_hold(tmp_path, later.pid)
        before = time.time() - 100
        os.utime(tmp_path / LOCK_FILE, (before, before))
        assert not may_hold(tmp_path, later.pid)
        reports: list[str] = []

        def report(line: str) -> None:
            reports.append(line)
            fcntl.flock(held, fcntl.LOCK_UN)

        try:
            UpLock(tmp_path, 60, report).close()
        finally:
            later.kill()
        assert reports == ["the last agentmem up was killed; waiting for its services to end…"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Mistake, match=f"^--data {re.escape(str(directory))} cannot be used: "):
            take(directory)
