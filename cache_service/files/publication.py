"""What a worker hands in to be published, and whether it is what it says."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentmem import blockfile
from agentmem.blockfile import BlockFileError, BlockHeader
from agentmem.identity import FileKind, FileName, Version
from agentmem.validation import AgentKey
from cache_service.files.disk import open_regular, sync
from cache_service.files.references import FileOrigin, FileRow


class Staged(NamedTuple):
    """A file that a worker wrote in staging/, as the worker describes it."""

    file: FileRow
    path: Path


@dataclass(frozen=True)
class Publication:
    """Files to make visible, and what the agent's state consists of; None: of these, besides what it had."""

    key: AgentKey
    version: Version
    staged: Sequence[Staged]
    references: frozenset[FileName] | None
    fingerprint: str


class Published(NamedTuple):
    """How many files became visible, and how many were dropped because they were there already."""

    published: int
    dropped: int


def header_of(file: FileRow, origin: FileOrigin) -> BlockHeader:
    """What the header of a file says that is what its row says."""
    (kind, chain_hash), first, tokens, *_ = file
    window = kind is FileKind.WINDOW
    return BlockHeader(origin.fingerprint, origin.key.namespace, chain_hash, origin.parent, first, tokens, window)


def verify(staged: Staged, namespace: str, fingerprint: str) -> bytes:
    """Check a staged file against its description and bring it to the disk, mode 0600; its parent's chain hash.

    The bytes behind the header are not read: the digest is checked by every load. Raises BlockFileError.
    """
    file = staged.file
    try:
        descriptor = open_regular(staged.path)
    except OSError as error:
        raise BlockFileError("truncated", f"cannot open it ({error.strerror})") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size_bytes:
            raise BlockFileError("truncated", f"{size} bytes instead of {file.size_bytes}")
        prefix = os.pread(descriptor, blockfile.header_bytes(os.pread(descriptor, 8, 0)), 0)
        found, _ = blockfile.parse(prefix, size)
        blockfile.verify(found, header_of(file, FileOrigin(AgentKey(namespace, "", ""), fingerprint, found.parent)))
        if len(found.parent) not in (0, len(found.chain_hash)):
            raise BlockFileError("header", "the parent is not a chain hash")
        os.fchmod(descriptor, 0o600)
        sync(descriptor)
    finally:
        os.close(descriptor)
    return found.parent
