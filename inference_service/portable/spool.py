"""Files of agents on their way: private, without a name, and bounded in number and by the free disk."""

import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from agentmem.errors import ResourceExhausted, is_disk_full

RETRY_SECONDS = 10.0
FREE_BYTES = 256 << 20
"""Disk that stays free, whatever is exported or imported."""


class SpoolFile:
    """A private file without a name, so that nothing is left of it whatever happens to the process. Any thread.

    Who goes away closes it while a thread may still be at work: that waits for the piece at work, and the next raises
    ValueError. A bare descriptor could be another file's by then.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by `close`
        self._lock = threading.Lock()

    def write(self, data: bytes, at: int) -> None:
        """Write all of `data`. Raises OSError, and ResourceExhausted where the disk is full."""
        with self._lock, disk_errors():
            view = memoryview(data)
            while view:
                written = os.pwrite(self._file.fileno(), view, at)
                view, at = view[written:], at + written

    def read(self, size: int, at: int) -> bytes:
        """So many bytes, or fewer where the file ends. Raises OSError."""
        pieces = []
        with self._lock:
            while size and (piece := os.pread(self._file.fileno(), size, at)):
                pieces.append(piece)
                size, at = size - len(piece), at + len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Let it go. May be called twice."""
        with self._lock:
            self._file.close()


class Spool:
    """Room for at most `limit` transfers, and their files in `directory`, which is made on first use. Event loop."""

    def __init__(self, directory: Path, limit: int = 4) -> None:
        self._directory = directory
        self._limit = limit
        self._open = 0

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """One of the places for a transfer. Raises ResourceExhausted if all are taken."""
        if self._open >= self._limit:
            raise ResourceExhausted(
                f"{self._open} agents are being exported or imported; try again when one is done", RETRY_SECONDS
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def file(self, size: int) -> SpoolFile:
        """A new file, for `size` bytes. Any thread. Raises ResourceExhausted where the disk lacks them."""
        with disk_errors():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._directory).free
            if free - size < FREE_BYTES:
                raise ResourceExhausted(
                    f"the file takes {size} bytes, and the worker's disk has {free}; make room on it", RETRY_SECONDS
                )
            return SpoolFile(self._directory)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise ResourceExhausted where the disk or the user's quota is full; other errors pass."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ResourceExhausted("the worker's disk is full; make room on it", RETRY_SECONDS) from error
        raise
