"""Single files on their way through a stream. All methods block, and those of one object run on one thread."""

import errno
import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import IO

from agentmem.blockfile import RunningDigest
from agentmem.errors import DataLoss, NotFound
from agentmem.identity import FileName
from cache_service.files.disk import disk_errors, open_private, open_regular

PIECE_BYTES = 1 << 20


def pieces(name: FileName, path: Path) -> Generator[bytes, None, None]:
    """Read a published file piece by piece; once begun, it may be unlinked. Raises NotFound, DataLoss, OSError."""
    try:
        with open(open_regular(path), "rb") as file:
            at = 0
            while piece := os.pread(file.fileno(), PIECE_BYTES, at):
                yield piece
                at += len(piece)
    except FileNotFoundError as error:
        raise NotFound("file", name.chain_hash.hex(), "compute it again") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DataLoss(f"the disk cannot read file {name.chain_hash.hex()}; compute it again") from error


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
