"""Files that come in, their verification, and files that go out."""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from agentmem.durable import sync
from agentmem.errors import DataLoss, NotFound
from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockFileError, BlockHeader, FileKind, FileName, RunningDigest
from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey
from cache_service.files.disk import disk_errors, open_private, open_regular
from cache_service.files.references import FileRow

PIECE_BYTES = 1 << 20
_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)


class Staged(NamedTuple):
    file: FileRow
    path: Path


@dataclass(frozen=True)
class Publication:
    """Files to publish, and those of the agent's state; None: these, besides what it had."""

    key: AgentKey
    version: Version
    staged: Sequence[Staged]
    references: frozenset[FileName] | None
    fingerprint: str


class Published(NamedTuple):
    published: int
    dropped: int


def header_of(file: FileRow) -> BlockHeader:
    (kind, chain_hash), first, tokens, *_ = file
    window = kind is FileKind.WINDOW
    return BlockHeader(file.fingerprint, file.key.namespace, chain_hash, file.parent, first, tokens, window)


def verify(staged: Staged, key: AgentKey, fingerprint: str) -> FileRow:
    """Check a staged file against its description and make it durable. The content is not read: every load checks its
    digest.

    Raises BlockFileError; OSError where that says nothing of the file.
    """
    file = staged.file
    try:
        descriptor = open_regular(staged.path)
    except OSError as error:
        if error.errno in _NOT_OF_THE_FILE:
            raise
        raise BlockFileError("truncated", f"cannot open it ({error.strerror})") from error
    with open(descriptor, "rb"):
        size = os.fstat(descriptor).st_size
        if size != file.size_bytes:
            raise BlockFileError("truncated", f"{size} bytes instead of {file.size_bytes}")
        prefix = os.pread(descriptor, blockfile.header_bytes(os.pread(descriptor, 8, 0)), 0)
        found, _ = blockfile.parse(prefix, size)
        file = file._replace(key=key, fingerprint=fingerprint, parent=found.parent)
        blockfile.verify(found, header_of(file))
        if len(found.parent) not in (0, len(found.chain_hash)):
            raise BlockFileError("header", "the parent is not a chain hash")
        os.fchmod(descriptor, 0o600)
        sync(descriptor)
    return file


def pieces(name: FileName, path: Path) -> Generator[bytes, None, None]:
    """Read a file, which may be unlinked meanwhile. Raises NotFound, DataLoss, OSError."""
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
    """A file that comes in pieces into staging/. `discard` in the end, always."""

    def __init__(self, path: Path, size_bytes: int, digest: bytes) -> None:
        self._path = path
        self._size = size_bytes
        self._digest = digest
        self._running = RunningDigest()
        self._written = 0
        self._file: IO[bytes] | None = None

    def write(self, piece: bytes) -> None:
        """Raises DataLoss for more than was announced, ResourceExhausted."""
        self._written += len(piece)
        if self._written > self._size:
            raise DataLoss(f"more came than the {self._size} bytes that were announced; send the file again")
        with disk_errors():
            if self._file is None:
                self._file = open_private(self._path)
            self._file.write(piece)
        self._running.update(piece)

    def finish(self) -> None:
        """Raises DataLoss for other bytes than announced, ResourceExhausted."""
        if self._file is None or self._written < self._size:
            raise DataLoss(f"{self._written} of {self._size} bytes came; send the file again")
        if self._running.digest() != self._digest:
            raise DataLoss("the bytes have another digest than was announced; send the file again")
        with disk_errors():
            self._file.close()

    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._path.unlink(missing_ok=True)
