"""Rows of objects in store.db: which files have a copy in the object store, which must go, and whose the place is.

Functions of a connection, inside the caller's transaction. That an object goes with the last who has a use for it is
the schema's: triggers put it among the deletions, whatever dropped the reference. Which files need a copy is warm.db's
to know: see `files.waiting`. A claim to the place is
written down before it is made, and confirmed after, so that a crash in between locks no store out.
"""

import uuid
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from agentmem.identity import FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.files.references import COLUMNS, FileOrigin, FileRow, described
from cache_service.files.waiting import Waiting
from cache_service.ledger import object_references
from cache_service.tiers.remote.contract import Claim, ObjectName


class Object(NamedTuple):
    """An object: the file that it is a copy of, and what that was computed for."""

    file: FileRow
    origin: FileOrigin

    @property
    def name(self) -> ObjectName:
        """Its name in the object store."""
        return ObjectName(*self.file.name, self.file.digest)


def find(connection: Connection, namespace: str, names: Iterable[FileName]) -> list[Object]:
    """Those of the named files that have a copy in the object store."""
    statement = f"SELECT {COLUMNS} FROM objects WHERE kind = ? AND chain_hash = ? AND namespace = ? AND present = 1"
    return [Object(*described(row)) for name in names for row in connection.execute(statement, (*name, namespace))]


def exists(connection: Connection, name: ObjectName) -> bool:
    """Whether there is still a use for an object."""
    statement = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ? AND present = 1"
    return connection.execute(statement, name).fetchone() is not None


def copies(connection: Connection, names: Set[FileName]) -> set[FileName]:
    """Those of the named files that have a copy in the object store."""
    statement = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND present = 1"
    return {name for name in names if connection.execute(statement, name).fetchone()}


class Begun(NamedTuple):
    """Of the files that were to be uploaded: which are, and which need not be, for they have a copy or are nobody's."""

    uploads: list[Object]
    useless: list[FileName]


def begin_uploads(connection: Connection, waiting: Iterable[Waiting]) -> Begun:
    """Note that uploads begin, and who has a use for them.

    An object that is still to be deleted is not uploaded again before it is gone: it goes on waiting.
    """
    begun = Begun([], [])
    for _, file, origin, holders in waiting:
        if _is_going(connection, ObjectName(*file.name, file.digest)):
            continue
        has_copy = bool(copies(connection, {file.name}))
        if not has_copy:
            # An upload of other bytes that a crash interrupted; the trigger lets it be deleted.
            connection.execute(
                "DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND digest != ?", (*file.name, file.digest)
            )
            row = (*file.name, file.first_token, file.token_count, file.size_bytes, file.digest)
            connection.execute(
                f"INSERT INTO objects ({COLUMNS}, present) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
                " ON CONFLICT DO NOTHING",
                (*row, *origin.key, origin.fingerprint, origin.parent),
            )
        is_used = object_references.add(connection, holders, file.name)
        if has_copy or not is_used:
            begun.useless.append(file.name)
        else:
            begun.uploads.append(Object(file, origin))
        if not is_used and not has_copy:
            connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ?", file.name)
    return begun


def end_uploads(connection: Connection, done: Iterable[ObjectName]) -> None:
    """These are there."""
    connection.executemany("UPDATE objects SET present = 1 WHERE kind = ? AND chain_hash = ? AND digest = ?", done)


def _is_going(connection: Connection, name: ObjectName) -> bool:
    statement = "SELECT 1 FROM object_deletions WHERE kind = ? AND chain_hash = ? AND digest = ?"
    return connection.execute(statement, name).fetchone() is not None


def present(connection: Connection) -> set[ObjectName]:
    """All objects that are there."""
    rows = connection.execute("SELECT kind, chain_hash, digest FROM objects WHERE present = 1")
    return {ObjectName(FileKind(kind), chain_hash, digest) for kind, chain_hash, digest in rows}


def forget(connection: Connection, names: Iterable[ObjectName]) -> None:
    """These are not there, or not what they should be: misses from now on."""
    connection.executemany("DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ?", names)


def disown(connection: Connection, names: Iterable[ObjectName]) -> int:
    """Let those go that no row knows; how many."""
    known = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND digest = ?"
    unknown = [name for name in names if connection.execute(known, name).fetchone() is None]
    connection.executemany(
        "INSERT INTO object_deletions (kind, chain_hash, digest, namespace, agent_id, model_id)"
        " VALUES (?, ?, ?, '', '', '') ON CONFLICT DO NOTHING",
        unknown,
    )
    return len(unknown)


def deletions(connection: Connection, limit: int) -> list[tuple[int, ObjectName]]:
    """The next objects that have to go, with their numbers."""
    rows = connection.execute("SELECT id, kind, chain_hash, digest FROM object_deletions ORDER BY id LIMIT ?", (limit,))
    return [(number, ObjectName(FileKind(kind), chain_hash, digest)) for number, kind, chain_hash, digest in rows]


def end_deletions(connection: Connection, numbers: Sequence[int]) -> bool:
    """These are gone; whether there is nothing more to delete."""
    connection.executemany("DELETE FROM object_deletions WHERE id = ?", [(number,) for number in numbers])
    return connection.execute("SELECT 1 FROM object_deletions LIMIT 1").fetchone() is None


def used_by(connection: Connection, key: AgentKey) -> list[ObjectName]:
    """The objects of an agent's state and of its snapshots, on all models if model_id is empty."""
    rows = connection.execute(
        "SELECT o.kind, o.chain_hash, o.digest FROM agents AS a JOIN object_refs AS r ON r.uid = a.uid"
        " JOIN objects AS o ON o.kind = r.kind AND o.chain_hash = r.chain_hash WHERE a.namespace = :namespace"
        " AND a.agent_id = :agent_id AND (a.model_id = :model_id OR :model_id = '') UNION"
        " SELECT o.kind, o.chain_hash, o.digest FROM agents AS a JOIN snapshots AS s ON s.uid = a.uid"
        " JOIN snapshot_object_refs AS r ON r.snapshot = s.id"
        " JOIN objects AS o ON o.kind = r.kind AND o.chain_hash = r.chain_hash WHERE a.namespace = :namespace"
        " AND a.agent_id = :agent_id AND (a.model_id = :model_id OR :model_id = '')",
        key._asdict(),
    )
    return [ObjectName(FileKind(kind), chain_hash, digest) for kind, chain_hash, digest in rows]


def attribute(connection: Connection, key: AgentKey, names: Iterable[ObjectName]) -> None:
    """Let this agent's deletion wait for those of these objects that have to go, whoever's turn computed them."""
    connection.executemany(
        "UPDATE object_deletions SET namespace = ?, agent_id = ?, model_id = ?"
        " WHERE kind = ? AND chain_hash = ? AND digest = ?",
        [(*key, *name) for name in names],
    )


def waiting(connection: Connection, key: AgentKey) -> int:
    """How many objects the agent's deletion waits for, on all models if model_id is empty."""
    (count,) = connection.execute(
        "SELECT count(*) FROM object_deletions WHERE namespace = ? AND agent_id = ?"
        " AND (model_id = ? OR model_id = '' OR ? = '')",
        (*key, key.model_id),
    ).fetchone()
    return int(count)


def backlog(connection: Connection) -> tuple[int, int]:
    """How many deletions there are to do, and the bytes of what is there."""
    deletions, size = connection.execute(
        "SELECT (SELECT count(*) FROM object_deletions),"
        " (SELECT coalesce(sum(size_bytes), 0) FROM objects WHERE present = 1)"
    ).fetchone()
    return deletions, size


def begin(connection: Connection, location: str) -> Claim:
    """A claim to `location`, with a new session.

    An empty place is one to take only if no object of this directory can be elsewhere.
    """
    connection.execute(
        "INSERT INTO remote_place (id, owner, location, session, next_session, uploading)"
        " VALUES (1, ?, '', '', '', 1) ON CONFLICT DO NOTHING",
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


def confirm(connection: Connection, location: str, claim: Claim) -> None:
    """The claim has succeeded."""
    connection.execute("UPDATE remote_place SET location = ?, session = ?", (location, claim.session))


def leave(connection: Connection) -> str:
    """Upload nothing from now on. Where there are objects nevertheless, "" if there are none."""
    connection.execute("UPDATE remote_place SET uploading = 0 WHERE uploading = 1")
    row = connection.execute("SELECT location FROM remote_place").fetchone()
    return str(row[0]) if row is not None and any_objects(connection) else ""


def abandon(connection: Connection) -> tuple[str, int]:
    """Give up all objects, wherever they are: the place, and how many there were. Files on the disk are put anew."""
    row = connection.execute("SELECT location FROM remote_place").fetchone()
    (count,) = connection.execute("SELECT count(*) FROM objects WHERE present = 1").fetchone()
    for table in ("objects", "object_refs", "snapshot_object_refs"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("DELETE FROM object_deletions")
    connection.execute("UPDATE remote_place SET location = '', session = '', next_session = ''")
    return ("" if row is None else str(row[0])), int(count)


def any_objects(connection: Connection) -> bool:
    """Whether there may be objects of this directory anywhere."""
    statement = "SELECT EXISTS (SELECT 1 FROM objects) OR EXISTS (SELECT 1 FROM object_deletions)"
    return bool(connection.execute(statement).fetchone()[0])
