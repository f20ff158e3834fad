"""Rows of warm.db: published files, and those that failed. Functions of a connection, inside the caller's transaction.

A file without a row doesn't exist for readers. Those that failed verification have other rows: they are kept with their
reason, out of everybody's reach, and are erased with their agent. Whose files are is `holding`'s.
"""

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
    """A file of KV; and, once a state may hold it, whose turn computed it, with which fingerprint, after which block.

    `token_ids` are a block's own, in order; empty where they are not known, or not asked for.
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
        """A file of a message. Raises ValueError."""
        name = FileName.from_proto(file)
        return cls(name, file.first_token, file.token_count, file.size_bytes, file.digest, file.token_ids)

    @property
    def columns(self) -> tuple[Any, ...]:
        """The values of COLUMNS."""
        return (*self.name, *self[1:5], *self.key, self.fingerprint, self.parent)


@dataclass
class Dropped:
    """What a deletion or an eviction leaves to do: files to unlink, after the transaction; and what it has done.

    `agents` are those that were deleted, or lost KV.
    """

    files: list[FileName] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    agents: int = 0
    freed_bytes: int = 0

    def add(self, other: "Dropped") -> None:
        """Count what another one dropped, too."""
        self.files += other.files
        self.quarantined += other.quarantined
        self.agents += other.agents
        self.freed_bytes += other.freed_bytes


COLUMNS = (
    "kind, chain_hash, first_token, token_count, size_bytes, digest, namespace, agent_id, model_id, fingerprint, parent"
)
"""Of a file's or an object's row."""
_KINDS = {kind.value: kind for kind in FileKind}  # to look one up costs a third of a call


def named(kind: int, chain_hash: bytes) -> FileName:
    """A name out of the columns of a row. Raises LedgerDamaged."""
    try:
        return FileName(_KINDS[kind], chain_hash)
    except KeyError as error:
        raise LedgerDamaged("the row of a file") from error


def described(row: Sequence[Any]) -> FileRow:
    """A file out of COLUMNS, after which token_ids may come. Raises LedgerDamaged."""
    name, token_ids = named(*row[:2]), b"".join(row[11:])
    return FileRow._make((name, *row[2:6], token_ids, AgentKey(*row[6:9]), *row[9:11]))


def find(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> list[FileRow]:
    """Those of the named files that exist in the namespace."""
    statement = f"SELECT {COLUMNS} FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ?"
    return [described(row) for name in names for row in connection.execute(statement, (*name, namespace))]


def closest(
    connection: sqlite3.Connection, namespace: str, fingerprint: str, parent: bytes, token_ids: bytes
) -> FileRow | None:
    """Of the blocks behind `parent`, that which shares the longest beginning with `token_ids`; None if none does.

    Blocks are in the order of their tokens, so it is one of the two that `token_ids` would stand between.
    """
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
    """In whose namespace a file of this name exists; None if there is none."""
    row = connection.execute("SELECT namespace FROM files WHERE kind = ? AND chain_hash = ?", name).fetchone()
    return None if row is None else str(row[0])


def add(connection: sqlite3.Connection, file: FileRow, now: int) -> None:
    """The row that makes a file visible."""
    values = *file.columns, file.token_ids, now, now
    statement = f"INSERT OR REPLACE INTO files ({COLUMNS}, token_ids, created, used)"
    connection.execute(f"{statement} VALUES ({', '.join('?' * len(values))})", values)


def computed_by(connection: sqlite3.Connection, key: AgentKey) -> list[FileName]:
    """Files that the agent's own turns computed, on all models if model_id is empty."""
    rows = connection.execute(
        "SELECT kind, chain_hash FROM files WHERE namespace = ? AND agent_id = ? AND (model_id = ? OR ? = '')",
        (*key, key.model_id),
    )
    return list(starmap(named, rows))


def quarantine(
    connection: sqlite3.Connection, namespace: str, name: FileName, file: str, digest: bytes | None = None
) -> bool:
    """Turn a published file's row into a quarantined one, stored as `file`; False if there is no such row.

    With a `digest`, only the row of a file with that digest.
    """
    row = connection.execute(
        "DELETE FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ? AND digest = ifnull(?, digest)"
        " RETURNING agent_id, model_id, size_bytes",
        (*name, namespace, digest),
    ).fetchone()
    if row is None:
        return False
    connection.execute(
        "INSERT INTO quarantined (file, kind, chain_hash, namespace, agent_id, model_id, size_bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (file, *name, namespace, *row),
    )
    return True


def drop_quarantined_of(connection: sqlite3.Connection, key: AgentKey, names: Iterable[FileName]) -> list[str]:
    """Forget what holds an agent's KV: its own turns' files (on all models if model_id is empty) and those of `names`.

    Returns the files to unlink.
    """
    rows = connection.execute(
        "DELETE FROM quarantined WHERE namespace = ? AND agent_id = ? AND (model_id = ? OR ? = '') RETURNING file",
        (*key, key.model_id),
    ).fetchall()
    for name in names:
        rows += connection.execute(
            "DELETE FROM quarantined WHERE kind = ? AND chain_hash = ? AND namespace = ? RETURNING file",
            (*name, key.namespace),
        ).fetchall()
    return [row[0] for row in rows]


def forget_quarantined(connection: sqlite3.Connection, files: Iterable[str]) -> None:
    """Drop the rows of files that aren't there any more."""
    connection.executemany("DELETE FROM quarantined WHERE file = ?", [(file,) for file in files])


def quarantined(connection: sqlite3.Connection) -> set[str]:
    """The names of all quarantined files."""
    return {row[0] for row in connection.execute("SELECT file FROM quarantined")}


def existing(connection: sqlite3.Connection, names: Iterable[FileName]) -> set[FileName]:
    """Those of `names` that have a row, in whatever namespace."""
    return {name for name in names if namespace_of(connection, name) is not None}


def any_published(connection: sqlite3.Connection) -> bool:
    """Whether any published file has a row."""
    return connection.execute("SELECT 1 FROM files LIMIT 1").fetchone() is not None


def all_names(connection: sqlite3.Connection) -> list[FileName]:
    """The names of all published files."""
    return list(starmap(named, connection.execute("SELECT kind, chain_hash FROM files")))


def forget(connection: sqlite3.Connection, names: Iterable[FileName], namespace: str | None = None) -> None:
    """Drop the rows of files that aren't there any more, in one namespace or in all."""
    connection.executemany(
        "DELETE FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ifnull(?, namespace)",
        [(*name, namespace) for name in names],
    )


def sizes(connection: sqlite3.Connection) -> dict[FileKind, int]:
    """Bytes of all published files, by kind."""
    return {named(kind, b"").kind: size for kind, size in connection.execute("SELECT kind, bytes FROM usage")}


def sums(connection: sqlite3.Connection) -> dict[FileKind, int]:
    """Likewise, counted anew."""
    statement = "SELECT coalesce(sum(size_bytes), 0) FROM files WHERE kind = ?"
    return {kind: connection.execute(statement, (kind,)).fetchone()[0] for kind in FileKind}


def recount(connection: sqlite3.Connection) -> None:
    """Count the bytes of all published files anew; nothing is written where they are counted right."""
    for kind, size in sums(connection).items():
        connection.execute(
            "INSERT INTO usage (kind, bytes) VALUES (:kind, :size)"
            " ON CONFLICT (kind) DO UPDATE SET bytes = :size WHERE bytes != :size",
            {"kind": kind, "size": size},
        )
