"""Rows of published files, and who refers to them. Functions of a connection, inside the caller's transaction.

References serve garbage collection only: a file that was referred to and no longer is gets deleted, row first, the
file after the transaction. Files that never were anybody's stay and are found by name. Those that failed verification
have other rows: they are kept with their reason, out of everybody's reach, and are erased with their agent.
"""

import sqlite3
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

from agentmem.identity import FileKind, FileName, Version, shared_tokens
from agentmem.validation import AgentKey
from cache_service.checksums import LedgerDamaged


class FileRow(NamedTuple):
    """A published file. `token_ids` are a block's own, in order; empty where they are not known, or not asked for."""

    name: FileName
    first_token: int
    token_count: int
    size_bytes: int
    digest: bytes
    token_ids: bytes = b""


class FileOrigin(NamedTuple):
    """What a file was computed for: whose turn, with which fingerprint, after which block."""

    key: AgentKey
    fingerprint: str
    parent: bytes


@dataclass
class Dropped:
    """What a deletion or an eviction leaves to do: files to unlink, after the transaction; and what it has done.

    `agents` are those that were deleted, or lost KV.
    """

    files: list[FileName] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    agents: int = 0
    freed_bytes: int = 0

    def is_anything(self) -> bool:
        """Whether there was something to drop."""
        return bool(self.agents or self.files or self.quarantined)

    def add(self, other: "Dropped") -> None:
        """Count what another one dropped, too."""
        self.files += other.files
        self.quarantined += other.quarantined
        self.agents += other.agents
        self.freed_bytes += other.freed_bytes


COLUMNS = (
    "kind, chain_hash, first_token, token_count, size_bytes, digest, namespace, agent_id, model_id, fingerprint, parent"
)
"""Of a file's or an object's row: what `described` takes."""
HELD = (
    "SELECT uid, kind, chain_hash, warm FROM refs UNION ALL SELECT s.uid, r.kind, r.chain_hash, r.warm"
    " FROM snapshot_refs AS r JOIN snapshots AS s ON s.id = r.snapshot"
)
"""Files that agents and their snapshots refer to; `warm` are those on the disk."""
_KINDS = {kind.value: kind for kind in FileKind}  # to look one up costs a third of a call


_IS_WELCOME = (
    "uid = :uid AND published_version <= :number AND (revision = :revision OR EXISTS"
    " (SELECT 1 FROM turns AS t WHERE t.uid = :uid AND t.version = :number AND t.revision = :revision))"
    " AND namespace = :namespace AND agent_id = :agent_id AND model_id = :model_id"
)
"""Whether an agent is still the one that has files to publish, and had their state; and nothing newer is published."""


def named(kind: int, chain_hash: bytes) -> FileName:
    """A name out of the columns of a row. Raises LedgerDamaged."""
    try:
        return FileName(_KINDS[kind], chain_hash)
    except KeyError as error:
        raise LedgerDamaged("the row of a file") from error


def described(row: Sequence[Any]) -> tuple[FileRow, FileOrigin]:
    """A file and its origin out of COLUMNS. Raises LedgerDamaged."""
    kind, chain_hash, first_token, token_count, size_bytes, digest, *key, fingerprint, parent = row
    file = FileRow(named(kind, chain_hash), first_token, token_count, size_bytes, digest)
    return file, FileOrigin(AgentKey(*key), fingerprint, parent)


def find(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> list[FileRow]:
    """Those of the named files that exist in the namespace."""
    statement = (
        "SELECT first_token, token_count, size_bytes, digest FROM files"
        " WHERE kind = ? AND chain_hash = ? AND namespace = ?"
    )
    return [FileRow(name, *row) for name in names for row in connection.execute(statement, (*name, namespace))]


def closest(
    connection: sqlite3.Connection, namespace: str, fingerprint: str, parent: bytes, token_ids: bytes
) -> FileRow | None:
    """Of the blocks behind `parent`, that which shares the longest beginning with `token_ids`; None if none does.

    Blocks are in the order of their tokens, so it is one of the two that `token_ids` would stand between.
    """
    statement = (
        "SELECT chain_hash, first_token, token_count, size_bytes, digest, token_ids FROM files"
        " WHERE namespace = ? AND fingerprint = ? AND parent = ? AND token_ids != x'' AND token_ids"
    )
    place = namespace, fingerprint, parent, token_ids
    found = [
        FileRow(FileName(FileKind.BLOCK, chain_hash), *row)
        for where in ("<= ? ORDER BY token_ids DESC", "> ? ORDER BY token_ids")
        for chain_hash, *row in connection.execute(f"{statement} {where} LIMIT 1", place)
    ]
    best = max(found, key=lambda file: shared_tokens(file.token_ids, token_ids), default=None)
    return best if best is not None and shared_tokens(best.token_ids, token_ids) else None


def namespace_of(connection: sqlite3.Connection, name: FileName) -> str | None:
    """In whose namespace a file of this name exists; None if there is none."""
    row = connection.execute("SELECT namespace FROM files WHERE kind = ? AND chain_hash = ?", name).fetchone()
    return None if row is None else str(row[0])


def add(connection: sqlite3.Connection, file: FileRow, origin: FileOrigin, now: int) -> None:
    """The row that makes a file visible."""
    connection.execute(
        "INSERT OR REPLACE INTO files (kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent,"
        " first_token, token_count, size_bytes, digest, token_ids, created, used)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*file.name, *origin.key, origin.fingerprint, origin.parent, *file[1:], now, now),
    )


def replace(connection: sqlite3.Connection, key: AgentKey, version: Version, names: Set[FileName]) -> list[FileName]:
    """Let the agent's state consist of `names`; the files that only it referred to and no longer does, their rows gone.

    Snapshots of that version get them, too. Otherwise does nothing if the agent isn't the same any more, if it never
    had that version, or a newer version's references are there already.
    """
    uid = version.uid
    connection.executemany(
        "INSERT OR IGNORE INTO snapshot_refs (snapshot, kind, chain_hash)"
        " SELECT id, ?, ? FROM snapshots WHERE uid = ? AND version = ? AND revision = ?",
        [(*name, *version) for name in names],
    )
    updated = connection.execute(
        f"UPDATE agents SET published_version = :number WHERE {_IS_WELCOME}",
        {**version._asdict(), **key._asdict()},
    )
    if not updated.rowcount:
        return []
    before = _change(connection, uid, names)
    connection.execute(
        "UPDATE refs SET warm = 1 WHERE uid = ? AND NOT warm AND EXISTS"
        " (SELECT 1 FROM files AS f WHERE f.kind = refs.kind AND f.chain_hash = refs.chain_hash)",
        (uid,),
    )
    dropped, _ = drop_unreferenced(connection, key.namespace, before - names)
    return dropped


def warm(connection: sqlite3.Connection, names: Iterable[FileName]) -> None:
    """These are on the disk again: let those who refer to them hold them there."""
    for name in names:
        connection.execute("UPDATE refs SET warm = 1 WHERE kind = ? AND chain_hash = ?", name)
        connection.execute("UPDATE snapshot_refs SET warm = 1 WHERE kind = ? AND chain_hash = ?", name)


def withdraw(connection: sqlite3.Connection, namespace: str, uid: str, names: Iterable[FileName]) -> list[FileName]:
    """Take files out of an agent's state; those that no other state has, their rows gone."""
    withdrawn = list(names)
    connection.executemany(
        "DELETE FROM refs WHERE uid = ? AND kind = ? AND chain_hash = ?", [(uid, *name) for name in withdrawn]
    )
    return drop_unreferenced(connection, namespace, withdrawn)[0]


def extend(connection: sqlite3.Connection, key: AgentKey, version: Version, names: Iterable[FileName]) -> None:
    """Let the agent's state consist of `names`, too, until `replace` says of what. It does nothing where that would."""
    agent = {**version._asdict(), **key._asdict()}
    connection.executemany(
        "INSERT OR IGNORE INTO refs (uid, kind, chain_hash)"
        f" SELECT uid, :kind, :chain_hash FROM agents WHERE {_IS_WELCOME}",
        [{**agent, **name._asdict()} for name in names],
    )


def of(connection: sqlite3.Connection, uid: str) -> set[FileName]:
    """What an agent refers to."""
    return set(starmap(named, connection.execute("SELECT kind, chain_hash FROM refs WHERE uid = ?", (uid,))))


def fingerprint(connection: sqlite3.Connection, uid: str, *, remote: bool) -> str:
    """With what the KV of an agent's published state was computed; "" if none of it is there.

    `remote` says whether what is in the object store only is there. A state has one fingerprint; while a streamed one
    is not wholly published, it may be the old one's.
    """
    for table, is_there in (("files", "true"), ("objects", "f.present AND :remote")):
        row = connection.execute(
            f"SELECT f.fingerprint FROM refs AS r CROSS JOIN {table} AS f USING (kind, chain_hash)"
            f" WHERE r.uid = :uid AND {is_there} LIMIT 1",
            {"uid": uid, "remote": remote},
        ).fetchone()
        if row is not None:
            return str(row[0])
    return ""


def held(connection: sqlite3.Connection, uid: str) -> set[FileName]:
    """What an agent and its snapshots refer to."""
    rows = connection.execute(f"SELECT kind, chain_hash FROM ({HELD}) WHERE uid = ?", (uid,))
    return set(starmap(named, rows))


def of_snapshot(connection: sqlite3.Connection, snapshot: int) -> set[FileName]:
    """What one snapshot refers to."""
    rows = connection.execute("SELECT kind, chain_hash FROM snapshot_refs WHERE snapshot = ?", (snapshot,))
    return set(starmap(named, rows))


def within(connection: sqlite3.Connection, names: Iterable[FileName], tokens: int) -> set[FileName]:
    """Those of `names` that stand wholly within the first `tokens` tokens; the others can't be found by name there."""
    return {
        name
        for name in names
        if connection.execute(
            "SELECT 1 FROM files WHERE kind = ? AND chain_hash = ? AND first_token + token_count <= ?"
            " UNION ALL SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND first_token + token_count <= ?",
            (*name, tokens, *name, tokens),
        ).fetchone()
    }


def give(connection: sqlite3.Connection, version: Version, names: Set[FileName]) -> None:
    """Let an agent's state consist of `names`, which another state does, too; what it had is not dropped.

    Older versions' references are ignored from now on.
    """
    connection.execute("UPDATE agents SET published_version = ? WHERE uid = ?", (version.number, version.uid))
    _change(connection, version.uid, names)


def computed_by(connection: sqlite3.Connection, key: AgentKey) -> list[FileName]:
    """Files that the agent's own turns computed, on all models if model_id is empty."""
    rows = connection.execute(
        "SELECT kind, chain_hash FROM files WHERE namespace = ? AND agent_id = ? AND (model_id = ? OR ? = '')",
        (*key, key.model_id),
    )
    return list(starmap(named, rows))


def drop_unreferenced(
    connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]
) -> tuple[list[FileName], int]:
    """Drop the rows of those of `names` that no state holds on the disk; the files to unlink, and their bytes.

    Who had a file evicted still refers to its object, and holds no file.
    """
    dropped, size = [], 0
    for name in names:
        row = connection.execute(
            "DELETE FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ? AND NOT EXISTS"
            " (SELECT 1 FROM refs WHERE refs.kind = files.kind AND refs.chain_hash = files.chain_hash AND refs.warm)"
            " AND NOT EXISTS (SELECT 1 FROM snapshot_refs AS r WHERE r.kind = files.kind"
            " AND r.chain_hash = files.chain_hash AND r.warm) RETURNING size_bytes",
            (*name, namespace),
        ).fetchone()
        if row is not None:
            dropped.append(name)
            size += row[0]
    return dropped, size


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


def note_published(connection: sqlite3.Connection) -> None:
    """Note that files are published from now on. Commit it before the first of them is in its place."""
    connection.execute("UPDATE data_directory SET has_published = 1")


def existing(connection: sqlite3.Connection, names: Iterable[FileName]) -> set[FileName]:
    """Those of `names` that have a row, in whatever namespace."""
    return {name for name in names if namespace_of(connection, name) is not None}


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


def _change(connection: sqlite3.Connection, uid: str, names: Set[FileName]) -> set[FileName]:
    """Let an agent refer to `names`; what it referred to before. Only the difference is written: triggers see it."""
    before = of(connection, uid)
    connection.executemany(
        "INSERT INTO refs (uid, kind, chain_hash) VALUES (?, ?, ?)", [(uid, *name) for name in names - before]
    )
    connection.executemany(
        "DELETE FROM refs WHERE uid = ? AND kind = ? AND chain_hash = ?", [(uid, *name) for name in before - names]
    )
    return before
