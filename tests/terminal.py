"""A program on a pseudo-terminal, which is its controlling one: what is typed, Ctrl-C included, and what is shown."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import termios
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[a-zA-Z]|[=>])")
_WITH_TERMINAL = (
    "import os, signal, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.executable, sys.argv[1:])"
)
"""Takes the terminal for the controlling one, as a session's leader that opens it does, and goes on as the program.

Tests in the background of a shell ignore SIGINT, and a program of a terminal does not."""

ENTER, CTRL_C, CTRL_D, UP, BACKSPACE, ALT_ENTER = "\r", "\x03", "\x04", "\x1b[A", "\x7f", "\x1b\r"


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


class Terminal:
    """Our end of one, and the program at the other."""

    def __init__(self, end: int, process: asyncio.subprocess.Process) -> None:
        self._end = end
        self.process = process
        self._bytes = b""
        self.raw = b""
        """All that was shown so far, with what steers the terminal."""

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._end, (rows, columns))

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._end)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    async def until(self, *wanted: str) -> str:
        """Wait until each of these has been shown, one after the other, and take what was shown up to the last."""
        deadline = time.monotonic() + 60
        while (end := self._end_of(wanted)) is None:
            assert time.monotonic() < deadline, f"{wanted} was not shown: {self._text()!r}"
            assert self._read() or self.process.returncode is None, f"{wanted} was not shown: {self._text()!r}"
            await asyncio.sleep(0.01)
        text = self._text()
        self._bytes = text[end:].encode()
        return text[:end]

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            while self.process.returncode is None:
                self._read()
                await asyncio.sleep(0.01)
        return self.process.returncode

    def _read(self) -> bool:
        with suppress(OSError):  # nothing now, or nothing more
            more = os.read(self._end, 1 << 16)
            self._bytes += more
            self.raw += more
            return bool(more)
        return False

    def _text(self) -> str:
        return _ESCAPES.sub(b"", self._bytes).decode("utf-8", "replace").replace("\r", "")

    def _end_of(self, wanted: tuple[str, ...]) -> int | None:
        text, at = self._text(), 0
        for part in wanted:
            found = text.find(part, at)
            if found < 0:
                return None
            at = found + len(part)
        return at


@asynccontextmanager
async def terminal(*arguments: str, columns: int = 80, **environment: str) -> AsyncIterator[Terminal]:
    """Python with these arguments, at a terminal; ended afterwards, where it has not ended."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    os.set_blocking(ours, False)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _WITH_TERMINAL, sys.executable, *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # A terminal answers when it is asked where its cursor is; this one does not.
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment},
    )
    try:
        yield Terminal(ours, process)
    finally:
        os.close(theirs)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(ours)
