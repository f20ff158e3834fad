"""The log that only `agentmem up` writes, so that rotation loses no line."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.cli.up.lock import holder_of, may_hold

LOG: Final = Path("logs", "up.log")

MOST_BYTES: Final = 16 << 20
"""Longer logs are moved to up.log.1."""

_MOST_BYTES_AT_START: Final = 1 << 20
_INTERVAL: Final = 60.0
_STREAMS: Final = (1, 2)


def prepared(data: Path) -> Path:
    """Return the log of a new stack, for its owner alone. A long one that nobody writes is moved aside."""
    path = data / LOG
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        pid = holder_of(data).get("pid", 0)
        others = pid != os.getpid() and may_hold(data, pid)
        if path.stat().st_size > _MOST_BYTES_AT_START and not others:
            _set_aside(path)
    os.close(_opened(path))
    return path


async def keep_short(data: Path, *descriptors: int) -> None:
    """Rotate the log whenever it is long, if `descriptors`, by default the standard streams, are of it."""
    while True:
        shorten(data / LOG, MOST_BYTES, *descriptors)
        await asyncio.sleep(_INTERVAL)


def shorten(path: Path, most: int, *descriptors: int) -> None:
    """Begin a new log if this one is ours and longer than `most` bytes."""
    with suppress(OSError):  # the disk may be full: keep the old one
        log = path.stat()
        ours = [each for each in descriptors or _STREAMS if os.path.samestat(os.fstat(each), log)]
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
