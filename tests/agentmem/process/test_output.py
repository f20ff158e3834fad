from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest

from agentmem.process import logs


@pytest.fixture(params=["pipe", "terminal"])
def gone(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    other, descriptor = os.pipe() if request.param == "pipe" else pty.openpty()
    os.close(other)
    with open(descriptor, "w") as stream:
        yield stream


def test_nothing_is_raised_then_or_later(gone: TextIO) -> None:
    logs.write(gone, "lost\n")
    logs.write(gone, "lost, too\n" * 10_000)
    gone.write("what others write\n")
    gone.flush()


def test_a_full_disk_may_have_room_again() -> None:
    stream = open("/dev/full", "w")  # noqa: SIM115 - its end fails, too
    logs.write(stream, "lost\n")
    assert os.path.samestat(os.fstat(stream.fileno()), os.stat("/dev/full"))
    with suppress(OSError):
        stream.close()


def test_what_is_taken_is_written_at_once() -> None:
    reader, writer = os.pipe()
    with open(reader) as other, open(writer, "w") as stream:
        logs.write(stream, "told\n")
        assert other.readline() == "told\n"
