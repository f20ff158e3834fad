"""Rows of published files in warm.db. Functions of a connection."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import shared_tokens
from agentmem.v1 import cache_store_pb2
from agentmem.validation import AgentKey
from cache_service.damage import LedgerDamaged


class FileRow(NamedTuple):
    """A file of KV; once held, also whose turn computed it. `token_ids` are a block's own; empty: unknown, or not asked
    for.
    """

    name: FileName
    first_token: int
    token_count: int
    size_bytes: int
    digest: bytes
    token_ids: bytes = b""
    key: AgentKey = AgentKey("", "", "")
    fingerprint: str = ""
    parent: bytes = b""

    @classmethod
    def from_proto(cls, file: cache_store_pb2.StoredFile) -> "FileRow":
        """Raises ValueError."""
        name = FileName.from_proto(file)
        return cls(name, file.first_token, file.token_count, file.size_bytes, file.digest, file.token_ids)

    @property
    def columns(self) -> tuple[Any, ...]:
        return (*self.name, *self[1:5], *self.key, self.fingerprint, self.parent)


@dataclass
class Dropped:
    """Files to unlink after a transaction; agents that were deleted, or lost KV."""

    files: list[FileName] = field(default_factory=list)
    agents: int = 0
    freed_bytes: int = 0

    def add(self, other: "Dropped") -> None:
        self.files += other.files
        self.agents += other.agents
        self.freed_bytes += other.freed_bytes


COLUMNS = (
    "kind, chain_hash, first_token, token_count, size_bytes, digest, namespace, agent_id, model_id, fingerprint, parent"
)
_KINDS = {kind.value: kind for kind in FileKind}  # a third of a call's time


def named(kind: int, chain_hash: bytes) -> FileName:
    """Raises LedgerDamaged."""
    try:
        return FileName(_KINDS[kind], chain_hash)
    except KeyError as error:
        raise LedgerDamaged("the row of a file") from error


def described(row: Sequence[Any]) -> FileRow:
    """Raises LedgerDamaged."""
    name, token_ids = named(*row[:2]), b"".join(row[11:])
    return FileRow._make((name, *row[2:6], token_ids, AgentKey(*row[6:9]), *row[9:11]))


def find(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> list[FileRow]:
    statement = f"SELECT {COLUMNS} FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ?"
    return [described(row) for name in names for row in connection.execute(statement, (*name, namespace))]


def closest(
    connection: sqlite3.Connection, namespace: str, fingerprint: str, parent: bytes, token_ids: bytes
) -> FileRow | None:
    """Return the block after `parent` that shares most of `token_ids`: in the order of tokens one of its neighbours."""
    statement = (
        f"SELECT {COLUMNS}, token_ids FROM files WHERE namespace = ? AND fingerprint = ? AND parent = ?"
        " AND token_ids != x'' AND token_ids"
    )
    place = namespace, fingerprint, parent, token_ids
    found = [
        described(row)
        for where in ("<= ? ORDER BY token_ids DESC", "> ? ORDER BY token_ids")
        for row in connection.execute(f"{statement} {where} LIMIT 1", place)
    ]
    best = max(found, key=lambda file: shared_tokens(file.token_ids, token_ids), default=None)
    return best if best is not None and shared_tokens(best.token_ids, token_ids) else None


def namespace_of(connection: sqlite3.Connection, name: FileName) -> str | None:
    row = connection.execute("SELECT namespace FROM files WHERE kind = ? AND chain_hash = ?", name).fetchone()
    return None if row is None else str(row[0])


def add(connection: sqlite3.Connection, file: FileRow, now: int) -> None:
    values = *file.columns, file.token_ids, now, now
    statement = f"INSERT OR REPLACE INTO files ({COLUMNS}, token_ids, created, used)"
    connection.execute(f"{statement} VALUES ({', '.join('?' * len(values))})", values)


def computed_by(connection: sqlite3.Connection, key: AgentKey) -> list[FileName]:
    """`key` without model_id: on all models."""
    rows = connection.execute(
        "SELECT kind, chain_hash FROM files WHERE namespace = ? AND agent_id = ? AND (model_id = ? OR ? = '')",
        (*key, key.model_id),
    )
    return list(starmap(named, rows))


def drop_damaged(
    connection: sqlite3.Connection, namespace: str, name: FileName, digest: bytes | None
) -> tuple[bytes, int] | None:
    """Return digest and size, if the file has this digest (None: any)."""
    found: tuple[bytes, int] | None = connection.execute(
        "DELETE FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ? AND digest = ifnull(?, digest)"
        " RETURNING digest, size_bytes",
        (*name, namespace, digest),
    ).fetchone()
    return found


def existing(connection: sqlite3.Connection, names: Iterable[FileName]) -> set[FileName]:
    return {name for name in names if namespace_of(connection, name) is not None}


def any_published(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM files LIMIT 1").fetchone() is not None


def all_names(connection: sqlite3.Connection) -> list[FileName]:
    return list(starmap(named, connection.execute("SELECT kind, chain_hash FROM files")))


def forget(connection: sqlite3.Connection, names: Iterable[FileName]) -> None:
    connection.executemany("DELETE FROM files WHERE kind = ? AND chain_hash = ?", names)


def total(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(sum(size_bytes), 0) FROM files").fetchone()[0])


def sizes(connection: sqlite3.Connection) -> dict[FileKind, int]:
    rows = connection.execute("SELECT kind, sum(size_bytes) FROM files INDEXED BY files_by_size GROUP BY kind")
    return dict.fromkeys(FileKind, 0) | {named(kind, b"").kind: int(size) for kind, size in rows}
