"""The terminal of the live view: its other screen, its keys, and the signals that concern it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_on_signals(stopping: asyncio.Event) -> None:
    """Set `stopping` on Ctrl-C and what else ends a command, instead of what these do."""
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


class Screen:
    """Shows lines on the terminal's other screen while its context lasts; what was there before is there again then.

    `draw` makes the lines for a width and a height; it is called by `redraw`, and when the window changes. The key q
    sets `stopping`, and so does the end of the terminal. Ctrl-Z gives the terminal back for as long as others have it.
    Everything runs on the thread of the running event loop.
    """

    def __init__(self, to: Console, draw: Callable[[int, int], list[Text]], stopping: asyncio.Event) -> None:
        self._console = to
        self._draw = draw
        self._stopping = stopping
        self._keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._modes: list[Any] = []
        self._live = Live(console=to, screen=True, auto_refresh=False, get_renderable=self._lines)

    def redraw(self) -> None:
        """Draw again."""
        self._live.refresh()

    def _lines(self) -> RenderableType:
        with suppress(OSError):  # COLUMNS and LINES, which rich believes, do not change with the window
            self._console.size = ConsoleDimensions(*os.get_terminal_size(self._console.file.fileno()))
        width, height = self._console.size
        return Group(*self._draw(width, height))

    def _take(self) -> None:
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        try:
            self._live.start(refresh=True)
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        self._live.stop()
        if self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _pause(self) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # and here it goes on
        self._take()

    def _key(self) -> None:
        assert self._keyboard is not None
        try:
            keys = os.read(self._keyboard, 1024)
        except OSError:  # the terminal is gone
            keys = b""
        if not keys or b"q" in keys.lower():
            self._stopping.set()
            asyncio.get_running_loop().remove_reader(self._keyboard)

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._take()
        if self._keyboard is not None:
            loop.add_reader(self._keyboard, self._key)
        loop.add_signal_handler(signal.SIGWINCH, self.redraw)
        loop.add_signal_handler(signal.SIGTSTP, self._pause)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            loop.remove_signal_handler(number)
        if self._keyboard is not None:
            loop.remove_reader(self._keyboard)
        self._give_back()
