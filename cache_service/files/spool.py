"""Single files on their way through a stream. All methods block, and those of one object run on one thread."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from agentmem.blockfile import RunningDigest
from agentmem.errors import DataLoss, NotFound
from agentmem.identity import FileName
from cache_service.files.disk import disk_errors, open_private, open_regular

PIECE_BYTES = 1 << 20


class Source:
    """A published file that is read piece by piece; once open, it may be unlinked. `close` in the end, always."""

    def __init__(self, name: FileName, path: Path) -> None:
        self._name = name
        self._path = path
        self._descriptor: int | None = None

    def read(self, offset: int) -> bytes:
        """At most PIECE_BYTES from `offset` on; nothing at the end. Raises NotFound, DataLoss, OSError."""
        with _unreadable(self._name):
            if self._descriptor is None:
                self._descriptor = open_regular(self._path)
            return os.pread(self._descriptor, PIECE_BYTES, offset)

    def close(self) -> None:
        """Let it go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Spool:
    """A file that comes in pieces and is written to staging/. `discard` in the end, always."""

    def __init__(self, path: Path, size_bytes: int, digest: bytes) -> None:
        self._path = path
        self._size = size_bytes
        self._digest = digest
        self._running = RunningDigest()
        self._written = 0
        self._file: IO[bytes] | None = None

    def write(self, piece: bytes) -> None:
        """Append. Raises DataLoss as soon as it is more than was announced, ResourceExhausted if the disk is full."""
        self._written += len(piece)
        if self._written > self._size:
            raise DataLoss(f"more came than the {self._size} bytes that were announced; send the file again")
        with disk_errors():
            if self._file is None:
                self._file = open_private(self._path)
            self._file.write(piece)
        self._running.update(piece)

    def finish(self) -> None:
        """All has come: it is in the file, and is what was announced. Raises DataLoss, ResourceExhausted."""
        if self._file is None or self._written < self._size:
            raise DataLoss(f"{self._written} of {self._size} bytes came; send the file again")
        if self._running.digest() != self._digest:
            raise DataLoss("the bytes have another digest than was announced; send the file again")
        with disk_errors():
            self._file.close()

    def discard(self) -> None:
        """Close it, and delete the file unless it has been moved elsewhere."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def _unreadable(name: FileName) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("file", name.chain_hash.hex(), "compute it again") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DataLoss(f"the disk cannot read file {name.chain_hash.hex()}; compute it again") from error
