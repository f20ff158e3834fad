from __future__ import annotations

import json
import logging
import os
import pty
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from agentmem import tracing
from agentmem.process import logs


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    root.handlers[:] = handlers
    root.setLevel(level)


log = logging.getLogger("agentmem.test")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == "", "standard output is not for logs"
    return captured.err.splitlines()


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("worker")
    logs.event(log, "turn finished", agent="é", tokens=3, seconds=0.5, path=Path("/x"))
    (line,) = lines(capsys)
    assert line.endswith('I worker turn finished agent="é" tokens=3 seconds=0.5 path="/x"')


HARMFUL = [
    "\x00",
    "\x1b",
    "\x7f",
    "\x80",
    "\x85",
    "\x9b",
    "\u200f",
    "\u2028",
    "\u2029",
    "\u202e",
    "\u2066",
    "\U000e0041",
]


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("character", HARMFUL, ids=ascii)
def test_what_a_terminal_would_obey_is_escaped(style: str, character: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("worker", style=style)
    logs.event(log, f"refused {character}", agent=f"é{character}x", **{f"n{character}": 1})
    log.warning("of a library: %s", character)
    for line in capsys.readouterr().err.split("\n")[:-1]:
        assert line.isprintable()
        if style == "json":
            assert character in json.loads(line)["message"]
    logs.event(log, "refused", agent=f"é{character}x")
    told = capsys.readouterr().err
    assert f'"é{json.dumps(character)[1:-1]}x"' in told


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("store", style="json")
    logs.event(log, "swept", logging.WARNING, files=2, path=Path("/é"))
    log.info("plain %s", "message")
    first, second = map(json.loads, lines(capsys))
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "warning", "service": "store", "logger": "agentmem.test", "message": "swept", "files": 2, "path": "/é",
    }  # fmt: skip
    assert second["message"] == "plain message"


@pytest.mark.parametrize("style", ["text", "json"])
def test_exceptions_are_told(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("store", style=style)
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("failed", extra={"fields": {"incident": 7}})
    told = lines(capsys)
    if style == "json":
        (line,) = map(json.loads, told)
        assert "KeyError: 'lost'" in line["exception"]
        assert line["incident"] == 7
    else:
        assert told[0].endswith("failed incident=7")
        assert told[-1] == "KeyError: 'lost'"


def test_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("store", "warning")
    logs.event(log, "not told")
    logs.event(log, "told", logging.ERROR)
    assert len(lines(capsys)) == 1
    with pytest.raises(ValueError, match="LOUD"):
        logs.configure("store", "loud")


@pytest.mark.parametrize("style", ["text", "json"])
def test_lines_of_a_request_have_its_id(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("store", style=style)
    with tracing.serving(tracing.Trace('a"b')):
        log.warning("plain")
        logs.event(log, "with fields", files=2)
    log.info("outside")
    *inside, outside = lines(capsys)
    assert "request_id" not in outside
    for line in inside:
        if style == "json":
            assert json.loads(line)["request_id"] == 'a"b'
        else:
            assert line.count(r'request_id="a\"b"') == 1


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
