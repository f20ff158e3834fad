"""Rows of objects: which files have a copy in the object store, which need one, which must go; and whose the place is.

Functions of a connection, inside the caller's transaction. That an object goes with the last who has a use for it is
the schema's: triggers put it among the deletions, whatever dropped the file or the reference. A claim to the place is
written down before it is made, and confirmed after, so that a crash in between locks no store out.
"""

import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.identity import FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.files.references import COLUMNS, FileOrigin, FileRow, described
from cache_service.tiers.remote.contract import Claim, ObjectName


class Object(NamedTuple):
    """An object: the file that it is a copy of, and what that was computed for."""

    file: FileRow
    origin: FileOrigin

    @property
    def name(self) -> ObjectName:
        """Its name in the object store."""
        return ObjectName(*self.file.name, self.file.digest)


_QUEUE = (
    "INSERT OR IGNORE INTO uploads (last, kind, chain_hash)"
    f" SELECT kind = {FileKind.BLOCK:d} AND token_count < {BLOCK_TOKENS}, kind, chain_hash FROM files AS f"
    " WHERE EXISTS (SELECT 1 FROM remote_place WHERE uploading) AND NOT EXISTS"
    " (SELECT 1 FROM objects AS o WHERE o.kind = f.kind AND o.chain_hash = f.chain_hash AND o.present)"
)


def find(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> list[Object]:
    """Those of the named files that have a copy in the object store."""
    statement = f"SELECT {COLUMNS} FROM objects WHERE kind = ? AND chain_hash = ? AND namespace = ? AND present"
    return [Object(*described(row)) for name in names for row in connection.execute(statement, (*name, namespace))]


def exists(connection: sqlite3.Connection, name: ObjectName) -> bool:
    """Whether there is still a use for an object."""
    statement = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ? AND present"
    return connection.execute(statement, name).fetchone() is not None


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
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM uploads AS u JOIN files AS f USING (kind, chain_hash) WHERE NOT EXISTS"
        " (SELECT 1 FROM object_deletions AS d"
        " WHERE d.kind = f.kind AND d.chain_hash = f.chain_hash AND d.digest = f.digest)"
        " ORDER BY u.last, u.id LIMIT ?",
        (limit,),
    ).fetchall()
    for row in rows:
        # An upload of other bytes that a crash interrupted; the trigger lets it be deleted.
        connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND digest != ?", (*row[:2], row[5]))
        connection.execute(
            f"INSERT OR IGNORE INTO objects ({COLUMNS}, present) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)", row
        )
    return [Object(*described(row)) for row in rows]


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
    return {ObjectName(FileKind(kind), chain_hash, digest) for kind, chain_hash, digest in rows}


def forget(connection: sqlite3.Connection, names: Iterable[ObjectName]) -> None:
    """These are not there, or not what they should be: misses from now on. Files that are on the disk are put again."""
    for name in names:
        connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ?", name)
        connection.execute(f"{_QUEUE} AND f.kind = ? AND f.chain_hash = ?", name.file)


def disown(connection: sqlite3.Connection, names: Iterable[ObjectName]) -> int:
    """Let those go that no row knows; how many."""
    known = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ?"
    unknown = [name for name in names if connection.execute(known, name).fetchone() is None]
    connection.executemany(
        "INSERT OR IGNORE INTO object_deletions (kind, chain_hash, digest, namespace, agent_id, model_id)"
        " VALUES (?, ?, ?, '', '', '')",
        unknown,
    )
    return len(unknown)


def deletions(connection: sqlite3.Connection, limit: int) -> list[tuple[int, ObjectName]]:
    """The next objects that have to go, with their numbers."""
    rows = connection.execute("SELECT id, kind, chain_hash, digest FROM object_deletions ORDER BY id LIMIT ?", (limit,))
    return [(number, ObjectName(FileKind(kind), chain_hash, digest)) for number, kind, chain_hash, digest in rows]


def end_deletions(connection: sqlite3.Connection, numbers: Sequence[int]) -> bool:
    """These are gone; whether there is nothing more to delete."""
    connection.executemany("DELETE FROM object_deletions WHERE id = ?", [(number,) for number in numbers])
    return connection.execute("SELECT 1 FROM object_deletions LIMIT 1").fetchone() is None


def last_deletion(connection: sqlite3.Connection) -> int:
    """The number of the newest deletion there ever was."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'object_deletions'").fetchone()
    return 0 if row is None else int(row[0])


def attribute(connection: sqlite3.Connection, key: AgentKey, after: int) -> None:
    """Let this agent's deletion wait for the objects numbered above `after`, whichever agent's turn computed them."""
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


def backlog(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """How many uploads and deletions there are to do, and the bytes of what is there."""
    uploads, deletions, size = connection.execute(
        "SELECT (SELECT count(*) FROM uploads), (SELECT count(*) FROM object_deletions),"
        " (SELECT coalesce(sum(size_bytes), 0) FROM objects WHERE present)"
    ).fetchone()
    return uploads, deletions, size


def begin(connection: sqlite3.Connection, location: str) -> Claim:
    """A claim to `location`, with a new session.

    An empty place is one to take only if no object of this directory can be elsewhere.
    """
    connection.execute(
        "INSERT OR IGNORE INTO remote_place (id, owner, location, session, next_session, uploading)"
        " VALUES (1, ?, '', '', '', 1)",
        (uuid.uuid4().hex,),
    )
    owner, before, *sessions = connection.execute(
        "SELECT owner, location, session, next_session FROM remote_place"
    ).fetchone()
    claim = Claim(
        owner,
        uuid.uuid4().hex,
        frozenset(sessions) - {""},
        may_create=location == before or not any_objects(connection),
    )
    connection.execute("UPDATE remote_place SET next_session = ?, uploading = 1", (claim.session,))
    return claim


def confirm(connection: sqlite3.Connection, location: str, claim: Claim) -> None:
    """The claim has succeeded."""
    connection.execute("UPDATE remote_place SET location = ?, session = ?", (location, claim.session))


def leave(connection: sqlite3.Connection) -> str:
    """Upload nothing from now on. Where there are objects nevertheless, "" if there are none."""
    connection.execute("UPDATE remote_place SET uploading = 0 WHERE uploading")
    connection.execute("DELETE FROM uploads WHERE true")  # without it, SQLite writes pages although there is no row
    row = connection.execute("SELECT location FROM remote_place").fetchone()
    return str(row[0]) if row is not None and any_objects(connection) else ""


def abandon(connection: sqlite3.Connection) -> tuple[str, int]:
    """Give up all objects, wherever they are: the place, and how many there were. Files on the disk are put anew."""
    row = connection.execute("SELECT location FROM remote_place").fetchone()
    (count,) = connection.execute("SELECT count(*) FROM objects WHERE present").fetchone()
    connection.execute("DELETE FROM objects")
    connection.execute("DELETE FROM object_deletions")
    connection.execute("UPDATE remote_place SET location = '', session = '', next_session = ''")
    return ("" if row is None else str(row[0])), int(count)


def any_objects(connection: sqlite3.Connection) -> bool:
    """Whether there may be objects of this directory anywhere."""
    statement = "SELECT EXISTS (SELECT 1 FROM objects) OR EXISTS (SELECT 1 FROM object_deletions)"
    return bool(connection.execute(statement).fetchone()[0])
