import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVICE = """
import signal, sys
print("arguments", *sys.argv[1:], flush=True)
print("name", __name__, flush=True)
def leave(number, frame):
    print("asked to end", flush=True)
    if "stubborn" not in sys.argv:
        sys.exit(7)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""


class Started:
    def __init__(self, directory: Path, *arguments: str, grace: float) -> None:
        (directory / "some_service.py").write_text(SERVICE)
        self.reading, self.writing = os.pipe()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "agentmem.process.parent",
                str(self.reading),
                str(grace),
                "some_service",
                *arguments,
            ],
            pass_fds=[self.reading],
            cwd=directory,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_until(self, line: str) -> list[str]:
        assert self.process.stdout is not None
        lines: list[str] = []
        while line not in lines:
            read = self.process.stdout.readline()
            assert read, f"ended after {lines}"
            lines.append(read.strip())
        return lines

    def orphan(self) -> None:
        os.close(self.writing)
        self.writing = -1

    def close(self) -> None:
        os.close(self.reading)
        if self.writing >= 0:
            os.close(self.writing)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def polite(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path, "--data", "x y", grace=60)
    yield started
    started.close()


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path, "stubborn", grace=0.2)
    yield started
    started.close()


def test_the_module_runs_as_if_called_itself(polite: Started) -> None:
    assert polite.read_until("ready") == ["arguments --data x y", "name __main__", "ready"]


def test_the_service_is_asked_to_end_when_its_parent_is_gone(polite: Started) -> None:
    polite.read_until("ready")
    assert polite.process.poll() is None
    polite.orphan()
    polite.read_until("asked to end")
    assert polite.process.wait(60) == 7, "it ended by itself, within its grace"


def test_a_service_that_does_not_end_is_ended(stubborn: Started) -> None:
    stubborn.read_until("ready")
    stubborn.orphan()
    stubborn.read_until("asked to end")
    assert stubborn.process.wait(60) == -signal.SIGKILL
