"""One line of a terminal that changes in place, below lines that stay."""

import itertools
import shutil
from typing import Any, Final, Self, TextIO

from rich.text import Text

from agentmem.console import in_foreground, is_screen
from agentmem.process import logs
from agentmem.words import printable

INTERVAL: Final = 0.25
"""Seconds between two looks."""

_AGAIN: Final = "\r\x1b[K"


class LiveLine:
    """Draws nothing in the background or where `stream` is no screen, whose loss it survives."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_screen = is_screen(stream)
        self._shown = ""
        self._turning = itertools.cycle("|/-\\")

    def show(self, text: str) -> None:
        """Draw `text`, cut at the terminal's width."""
        before, self._shown = self._shown, text
        if (text or before) and self._draws():
            line = Text(f"{next(self._turning)} {printable(text)}" if text else "")
            line.truncate(shutil.get_terminal_size().columns - 1)
            logs.write(self._stream, f"{_AGAIN}{line.plain}")

    def say(self, line: str) -> None:
        """Write a line that stays."""
        logs.write(self._stream, f"{_AGAIN * self._draws()}{line}\n")  # over a ^C, too
        self.show(self._shown)

    def _draws(self) -> bool:
        return self._is_screen and in_foreground(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.show("")
