from __future__ import annotations

import io
import os
import pty

import pytest

from gateway.cli.live_line import LiveLine
from tests.terminal import terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")


def test_a_line_changes_in_place_below_lines_that_stay() -> None:
    screen = Screen()
    with LiveLine(screen) as line:
        line.show("reading 40 %")
        line.say("worker ended")
        line.show("reading [bold]\x1b and much more")
    assert screen.getvalue().split("\r\x1b[K") == [
        "",
        "| reading 40 %",
        "worker ended\n",
        "/ reading 40 %",
        r"- reading [bold]\x1",
        "",
    ]


def test_what_is_typed_goes_with_the_next_line() -> None:
    screen = Screen()
    screen.write("^C")
    LiveLine(screen).say("stopping")
    assert screen.getvalue() == "^C\r\x1b[Kstopping\n"


def test_nothing_is_drawn_without_a_terminal() -> None:
    stream = io.StringIO()
    with LiveLine(stream) as line:
        line.show("reading")
        line.say("ready")
    assert stream.getvalue() == "ready\n"


def test_nothing_is_drawn_where_a_cursor_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    with LiveLine(screen) as line:
        line.show("reading")
        line.say("ready")
    assert screen.getvalue() == "ready\n"


IN_BACKGROUND = """
import os, signal, sys
from gateway.cli.live_line import LiveLine
from tests.terminal import terminal
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
line, own = LiveLine(sys.stdout), os.getpgrp()
def take(group):
    os.tcsetpgrp(0, group)
if (child := os.fork()) == 0:
    os.setpgid(0, 0)
    take(os.getpgrp())
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
line.show("in the background")
take(own)
os.waitpid(child, 0)
line.show("in the foreground")
"""


async def test_nothing_is_drawn_in_the_background() -> None:
    async with terminal("-c", IN_BACKGROUND) as shown:
        assert "in the background" not in await shown.until("in the foreground")


def test_a_terminal_that_is_gone_is_survived() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as screen:
        line = LiveLine(screen)
        line.show("reading")
        os.close(ours)
        line.show("reading on")
        line.say("stopped")
