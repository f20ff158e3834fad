"""The file that a stack in the background writes: a short one, and the one before it.

Services write to pipes of `agentmem up`, which alone writes to the file, so that it can begin another one and lose no
line.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

LOG: Final = Path("logs", "up.log")
"""In the data directory."""

MOST_BYTES: Final = 16 << 20
"""Of a stack that runs. What it has written before is in the file beside, which it overwrites."""

_MOST_BYTES_AT_START: Final = 1 << 20
_INTERVAL: Final = 60.0


def prepared(data: Path) -> Path:
    """Return the log of a stack that is to be started, made for its owner alone; one that is long is set aside."""
    path = data / LOG
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        if path.stat().st_size > _MOST_BYTES_AT_START:
            _set_aside(path)
    os.close(_opened(path))
    return path


async def keep_short(data: Path) -> None:
    """Begin the log anew whenever it is long, if that is what this process writes to."""
    while True:
        shorten(data / LOG, MOST_BYTES)
        await asyncio.sleep(_INTERVAL)


def shorten(path: Path, most: int) -> None:
    """Set the log aside if it is longer than `most` bytes, and write to a new one; another's is left as it is."""
    with suppress(OSError):  # the disk may be full: the old one goes on
        log = path.stat()
        ours = [each for each in (1, 2) if os.path.samestat(os.fstat(each), log)]
        if not ours or log.st_size <= most:
            return
        sys.stdout.flush()
        _set_aside(path)
        begun = _opened(path)
        for descriptor in ours:
            os.dup2(begun, descriptor)
        os.close(begun)


def _set_aside(path: Path) -> None:
    path.replace(path.with_suffix(".log.1"))


def _opened(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
