"""Files of agents on their way: private, without a name, and bounded in number and by the free disk."""

import errno
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

from agentmem.errors import ResourceExhausted

RETRY_SECONDS = 10.0
FREE_BYTES = 256 << 20
"""Disk that stays free, whatever is exported or imported."""


class Spool:
    """Room for at most `limit` files in `directory`, which is made on first use. Event loop.

    A file has no name from the start, so that nothing is left of it whatever happens to the process.
    """

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

    def file(self, size: int) -> IO[bytes]:
        """A new file, for `size` bytes. Blocks for a moment. Raises ResourceExhausted where the disk lacks them."""
        with disk_errors():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._directory).free
            if free - size < FREE_BYTES:
                raise ResourceExhausted(
                    f"the file takes {size} bytes, and the worker's disk has {free}; make room on it", RETRY_SECONDS
                )
            return tempfile.TemporaryFile(dir=self._directory)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise ResourceExhausted where the disk or the user's quota is full; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted("the worker's disk is full; make room on it", RETRY_SECONDS) from error
        raise
