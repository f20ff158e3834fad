"""Rows of objects: which files have a copy in the object store, which need one, and which copies have to go.

Functions of a connection, inside the caller's transaction. That an object goes with the last who has a use for it is
the schema's: triggers put it among the deletions, whatever dropped the file or the reference.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.keys import AgentKey
from cache_service.files import FileName, Kind
from cache_service.references import FileOrigin, FileRow, named
from cache_service.remote import ObjectName


class Object(NamedTuple):
    """An object: the file that it is a copy of, and what that was computed for."""

    file: FileRow
    origin: FileOrigin

    @property
    def name(self) -> ObjectName:
        """Its name in the object store."""
        return ObjectName(*self.file.name, self.file.digest)


class Backlog(NamedTuple):
    """What is to be done in the object store, and the bytes of what is there."""

    uploads: int
    deletions: int
    bytes: int


_COLUMNS = (
    "kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent, first_token, token_count, size_bytes, digest"
)

_QUEUE = (
    "INSERT OR IGNORE INTO uploads (last, kind, chain_hash)"
    f" SELECT kind = {Kind.BLOCK:d} AND token_count < {BLOCK_TOKENS}, kind, chain_hash FROM files AS f"
    " WHERE EXISTS (SELECT 1 FROM remote_place WHERE uploading) AND NOT EXISTS"
    " (SELECT 1 FROM objects AS o WHERE o.kind = f.kind AND o.chain_hash = f.chain_hash AND o.present)"
)


def find(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> list[Object]:
    """Those of the named files that have a copy in the object store."""
    found = []
    for name in names:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND chain_hash = ? AND namespace = ? AND present",
            (*name, namespace),
        ).fetchone()
        if row is not None:
            found.append(_object(row))
    return found


def exists(connection: sqlite3.Connection, name: ObjectName) -> bool:
    """Whether there is still a use for an object."""
    return (
        connection.execute(
            "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ? AND present", name
        ).fetchone()
        is not None
    )


def catch_up(connection: sqlite3.Connection) -> None:
    """Let all files be uploaded that have no copy: those of a time without an object store, and of a crash."""
    connection.execute(f"{_QUEUE} ORDER BY created")


def any_to_upload(connection: sqlite3.Connection) -> bool:
    """Whether there is a file without a copy."""
    return connection.execute("SELECT 1 FROM uploads LIMIT 1").fetchone() is not None


def begin_uploads(connection: sqlite3.Connection, limit: int) -> list[Object]:
    """Note that the next uploads begin, at most `limit`; which these are.

    An object that is still to be deleted is not uploaded again before it is gone.
    """
    columns = ", ".join(f"f.{column}" for column in _COLUMNS.split(", "))
    rows = connection.execute(
        f"SELECT {columns} FROM uploads AS u JOIN files AS f USING (kind, chain_hash) WHERE NOT EXISTS"
        " (SELECT 1 FROM object_deletions AS d"
        " WHERE d.kind = f.kind AND d.chain_hash = f.chain_hash AND d.digest = f.digest)"
        " ORDER BY u.last, u.id LIMIT ?",
        (limit,),
    ).fetchall()
    for row in rows:
        # An upload of other bytes that a crash interrupted; the trigger lets it be deleted.
        connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND digest != ?", (*row[:2], row[-1]))
        connection.execute(
            f"INSERT OR IGNORE INTO objects ({_COLUMNS}, present) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)", row
        )
    return [_object(row) for row in rows]


def end_uploads(
    connection: sqlite3.Connection,
    done: Iterable[ObjectName],
    useless: Iterable[ObjectName],
    failed: Iterable[ObjectName],
) -> None:
    """Some are there, some can't be uploaded at all, and some have to be tried again, after all others."""
    done = list(done)
    connection.executemany("UPDATE objects SET present = 1 WHERE kind = ? AND chain_hash = ? AND digest = ?", done)
    connection.executemany(
        "DELETE FROM uploads WHERE kind = ? AND chain_hash = ?", [name.file for name in (*done, *useless)]
    )
    connection.executemany(
        "UPDATE uploads SET id = (SELECT max(id) + 1 FROM uploads) WHERE kind = ? AND chain_hash = ?",
        [name.file for name in failed],
    )


def present(connection: sqlite3.Connection) -> set[ObjectName]:
    """All objects that are there."""
    rows = connection.execute("SELECT kind, chain_hash, digest FROM objects WHERE present")
    return {ObjectName(Kind(kind), chain_hash, digest) for kind, chain_hash, digest in rows}


def forget(connection: sqlite3.Connection, names: Iterable[ObjectName]) -> None:
    """These are not there, or not what they should be: misses from now on. Files that are on the disk are put again."""
    for name in names:
        connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ?", name)
        connection.execute(f"{_QUEUE} AND f.kind = ? AND f.chain_hash = ?", name.file)


def disown(connection: sqlite3.Connection, names: Iterable[ObjectName]) -> int:
    """Let those go that no row knows; how many."""
    unknown = [
        name
        for name in names
        if not connection.execute(
            "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ?", name
        ).fetchone()
    ]
    connection.executemany(
        "INSERT OR IGNORE INTO object_deletions (kind, chain_hash, digest, namespace, agent_id, model_id)"
        " VALUES (?, ?, ?, '', '', '')",
        unknown,
    )
    return len(unknown)


def deletions(connection: sqlite3.Connection, limit: int) -> list[tuple[int, ObjectName]]:
    """The next objects that have to go, with their numbers."""
    rows = connection.execute("SELECT id, kind, chain_hash, digest FROM object_deletions ORDER BY id LIMIT ?", (limit,))
    return [(number, ObjectName(Kind(kind), chain_hash, digest)) for number, kind, chain_hash, digest in rows]


def end_deletions(connection: sqlite3.Connection, numbers: Sequence[int]) -> bool:
    """These are gone; whether there is nothing more to delete."""
    connection.executemany("DELETE FROM object_deletions WHERE id = ?", [(number,) for number in numbers])
    return connection.execute("SELECT 1 FROM object_deletions LIMIT 1").fetchone() is None


def last_deletion(connection: sqlite3.Connection) -> int:
    """The number of the newest deletion there ever was."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'object_deletions'").fetchone()
    return 0 if row is None else int(row[0])


def attribute(connection: sqlite3.Connection, key: AgentKey, after: int) -> None:
    """Let this agent's deletion wait for the objects numbered above `after`, whoever's turn computed them."""
    connection.execute(
        "UPDATE object_deletions SET namespace = ?, agent_id = ?, model_id = ? WHERE id > ?", (*key, after)
    )


def waiting(connection: sqlite3.Connection, key: AgentKey) -> int:
    """How many objects the agent's deletion waits for, on all models if model_id is empty."""
    (count,) = connection.execute(
        "SELECT count(*) FROM object_deletions WHERE namespace = ? AND agent_id = ?"
        " AND (model_id = ? OR model_id = '' OR ? = '')",
        (*key, key.model_id),
    ).fetchone()
    return int(count)


def backlog(connection: sqlite3.Connection) -> Backlog:
    """How much there is to do."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM uploads), (SELECT count(*) FROM object_deletions),"
        " (SELECT coalesce(sum(size_bytes), 0) FROM objects WHERE present)"
    ).fetchone()
    return Backlog(*row)


def _object(row: tuple[Any, ...]) -> Object:
    kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent = row[:7]
    file = FileRow(named(kind, chain_hash), *row[7:])
    return Object(file, FileOrigin(AgentKey(namespace, agent_id, model_id), fingerprint, parent))
