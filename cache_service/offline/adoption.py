"""Owners of KV files without rows, by headers and ledgers, where warm.db is lost. Reads every ledger and file."""

import os
import sqlite3
import time
from collections import defaultdict

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, BlockFileError, FileKind, FileName
from agentmem.kv.ledger import Uint32
from agentmem.validation import AgentKey
from cache_service.damage import LedgerDamaged
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import open_regular
from cache_service.files.references import FileRow
from cache_service.ledger import kv_changes, segments
from cache_service.offline import ledgers


class Names:
    def __init__(self, token_ids: Uint32) -> None:
        self._token_ids: list[int] = token_ids.tolist()
        self._chains: dict[tuple[str, str], list[bytes]] = {}

    def chain(self, fingerprint: str, namespace: str) -> list[bytes]:
        """Return NO_PARENT, and the names of all blocks."""
        chain = self._chains.get((fingerprint, namespace))
        if chain is None:
            names = blockfile.chain_hashes(fingerprint, namespace, self._token_ids)
            chain = self._chains[fingerprint, namespace] = [NO_PARENT, *names]
        return chain

    def has(self, row: FileRow) -> bool:
        end = row.first_token + row.token_count
        if not 0 < end <= len(self._token_ids):
            return False
        first = (end - 1) // BLOCK_TOKENS
        parent = self.chain(row.fingerprint, row.key.namespace)[first]
        tokens = self._token_ids[first * BLOCK_TOKENS : end]
        expected = blockfile.chain_hash(row.fingerprint, row.key.namespace, parent, tokens)
        return (expected, parent) == (row.name.chain_hash, row.parent)


def adopt(directory: DataDirectory, ledger: sqlite3.Connection, warm: sqlite3.Connection) -> int:
    """Add rows for files that a ledger names; return how many.

    Other files stay orphans: they may be a deleted agent's. Raises OSError, sqlite3.Error.
    """
    now, adopted = time.time_ns(), set[FileName]()
    by_parent: defaultdict[tuple[str, str, bytes], list[FileRow]] = defaultdict(list)
    for name in directory.published():
        if (found := _described(directory, name)) is not None:
            by_parent[found.fingerprint, found.key.namespace, found.parent].append(found)
    fingerprints = {fingerprint for fingerprint, _, _ in by_parent}
    for holder in ledgers.holders(ledger) if by_parent else ():
        try:
            namespace, names = holder.key.namespace, Names(segments.read(ledger, holder.head).token_ids)
        except LedgerDamaged:
            continue
        for place in ((each, namespace, parent) for each in fingerprints for parent in names.chain(each, namespace)):
            for row in by_parent.get(place, ()):
                if not names.has(row):
                    continue
                if row.name not in adopted:  # by the first of them
                    references.add(warm, row._replace(key=holder.key), now)
                    adopted.add(row.name)
                holding.hold(warm, [holder.range], row.name)
    versions = ledger.execute("SELECT uid, version FROM agents").fetchall()
    warm.executemany("INSERT OR REPLACE INTO published (uid, version) VALUES (?, ?)", versions)
    warm.execute("UPDATE followed SET change = ?", (kv_changes.last(ledger),))
    return len(adopted)


def _described(directory: DataDirectory, name: FileName) -> FileRow | None:
    try:
        with open(open_regular(directory.path(name)), "rb") as file:
            data, size = file.read(), os.fstat(file.fileno()).st_size
        header, _ = blockfile.parse(data, size)
    except (OSError, BlockFileError):
        return None
    if (header.chain_hash, header.window) != (name.chain_hash, name.kind is FileKind.WINDOW):
        return None
    described = name, header.first_token, header.token_count, size, blockfile.digest(data)
    return FileRow(*described, b"", AgentKey(header.namespace, "", ""), header.fingerprint, header.parent)
