"""Rows of objects in store.db: which files have a copy in the object store, which must go, and whose the place is.

Functions of a connection, inside the caller's transaction. That an object goes with the last who has a use for it is
the schema's: triggers put it among the deletions, whatever dropped the reference. Which files need a copy is warm.db's
to know: see `files.waiting`. A claim to the place is
written down before it is made, and confirmed after, so that a crash in between locks no store out.
"""

import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.connection import Connection, among, pieces
from cache_service.files.references import COLUMNS, FileRow, described
from cache_service.files.waiting import Waiting
from cache_service.ledger import object_references
from cache_service.tiers.remote.contract import Claim, ObjectName


class Object(NamedTuple):
    """An object, and the file that it is a copy of."""

    file: FileRow
    generation: str = ""

    @property
    def name(self) -> ObjectName:
        """Its name in the object store."""
        return ObjectName(*self.file.name, self.file.digest, self.generation)


def find(connection: Connection, namespace: str, names: Iterable[FileName]) -> list[Object]:
    """Those of the named files that have a copy in the object store."""
    statement = (
        f"SELECT generation, {COLUMNS} FROM objects WHERE kind = ? AND chain_hash = ? AND namespace = ? AND present = 1"
    )
    rows = (row for name in names for row in connection.execute(statement, (*name, namespace)))
    return [Object(described(row), generation) for generation, *row in rows]


def exists(connection: Connection, name: ObjectName) -> bool:
    """Whether there is still a use for an object."""
    return connection.execute(f"SELECT 1 FROM objects WHERE {_THIS} AND present = 1", name).fetchone() is not None


def copies(connection: Connection, names: Set[FileName]) -> set[FileName]:
    """Those of the named files that have a copy in the object store."""
    found = set[FileName]()
    for kind in FileKind:
        for some in pieces([name.chain_hash for name in names if name.kind is kind]):
            which = f"kind = ? AND {among('chain_hash', some)} AND present = 1"
            rows = connection.execute(f"SELECT chain_hash FROM objects WHERE {which}", (kind, *some))
            found.update(FileName(kind, chain_hash) for (chain_hash,) in rows)
    return found


_NAME = "kind, chain_hash, digest, generation"
_THIS = "kind = ? AND chain_hash = ? AND digest = ? AND generation = ?"


class Begun(NamedTuple):
    """Of the files that were to be uploaded: which are, which need not be, for they have a copy or are nobody's; and
    which another node is uploading.
    """

    uploads: list[Object]
    useless: list[FileName]
    others: list[FileName]


def begin_uploads(
    connection: Connection, waiting: Iterable[Waiting], uploader: str = "", live: Set[str] = frozenset()
) -> Begun:
    """Note that uploads begin, and who has a use for them. In a cluster `uploader` is this node, and `live` are others
    that are there: what one of these is uploading is left to it.

    An object that is still to be deleted is not uploaded again under its name before it is gone: it goes on waiting.
    """
    begun = Begun([], [], [])
    for _, file, holders in waiting:
        name = file.name
        row = connection.execute(
            "SELECT digest, present, generation, uploader FROM objects WHERE kind = ? AND chain_hash = ?", name
        ).fetchone()
        digest, present, generation, by = (file.digest, 0, "", uploader) if row is None else row
        if not present and by != uploader and by in live:
            begun.others.append(name)
            continue
        if not present and (row is None or digest != file.digest or by != uploader):
            # Another's, or of other bytes, which a crash interrupted; the trigger lets it be deleted.
            connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ?", name)
            generation = secrets.token_hex(8) if uploader else ""
            if not generation and _is_going(connection, ObjectName(*name, file.digest)):
                continue
            connection.execute(
                f"INSERT INTO objects ({COLUMNS}, present, generation, uploader)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
                (*file.columns, generation, uploader),
            )
        elif not present and _is_going(connection, ObjectName(*name, digest, generation)):
            continue
        is_used = object_references.add(connection, holders, name)
        if present or not is_used:
            begun.useless.append(name)
        else:
            begun.uploads.append(Object(file, generation))
        if not is_used and not present:
            connection.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ?", name)
    return begun


def end_uploads(
    connection: Connection, done: Sequence[ObjectName], uploader: str = "", tried: Iterable[ObjectName] = ()
) -> None:
    """These are there, and those that were `tried` may be. One that nobody has a use for any more has to go: its row
    went while it was uploaded, maybe by a node that took this one for gone and has deleted what was not there yet.
    """
    connection.executemany(f"UPDATE objects SET present = 1 WHERE {_THIS}", done)
    disown(connection, [*done, *tried])
    connection.execute("UPDATE object_deletions SET uploader = '' WHERE uploader = ? AND uploader != ''", (uploader,))


def any_held_back(connection: Connection, uploader: str) -> bool:
    """Whether a deletion waits for an upload of this node."""
    row = connection.execute("SELECT 1 FROM object_deletions WHERE uploader = ? LIMIT 1", (uploader,)).fetchone()
    return row is not None


def _is_going(connection: Connection, name: ObjectName) -> bool:
    return connection.execute(f"SELECT 1 FROM object_deletions WHERE {_THIS}", name).fetchone() is not None


def present(connection: Connection) -> set[ObjectName]:
    """All objects that are there."""
    return set(_named(connection.execute(f"SELECT {_NAME} FROM objects WHERE present = 1")))


def forget(connection: Connection, names: Iterable[ObjectName]) -> None:
    """These are not there, or not what they should be: misses from now on."""
    connection.executemany(f"DELETE FROM objects WHERE {_THIS}", names)


def disown(connection: Connection, names: Iterable[ObjectName]) -> int:
    """Let those go that no row knows; how many."""
    known = f"SELECT 1 FROM objects WHERE {_THIS}"
    unknown = [name for name in dict.fromkeys(names) if connection.execute(known, name).fetchone() is None]
    connection.executemany(
        "INSERT INTO object_deletions (kind, chain_hash, digest, generation, namespace, agent_id, model_id)"
        " VALUES (?, ?, ?, ?, '', '', '') ON CONFLICT DO NOTHING",
        unknown,
    )
    return len(unknown)


class Deletion(NamedTuple):
    """An object that has to go, by the number of its row; `late`: who is gone may still have been uploading it."""

    number: int
    name: ObjectName
    late: bool


def deletions(connection: Connection, limit: int, live: Set[str] = frozenset()) -> list[Deletion]:
    """The next objects that have to go; not those that `live` nodes may still be uploading."""
    nodes = ["", *sorted(live)]
    rows = connection.execute(
        f"SELECT id, uploader, {_NAME} FROM object_deletions WHERE uploader = '' OR NOT {among('uploader', nodes)}"
        " ORDER BY id LIMIT ?",
        (*nodes, limit),
    ).fetchall()
    names = _named(name for _, _, *name in rows)
    return [Deletion(number, name, by != "") for (number, by, *_), name in zip(rows, names, strict=True)]


def end_deletions(connection: Connection, numbers: Sequence[int]) -> bool:
    """These are gone; whether there is nothing more to delete."""
    connection.executemany("DELETE FROM object_deletions WHERE id = ?", [(number,) for number in numbers])
    return connection.execute("SELECT 1 FROM object_deletions LIMIT 1").fetchone() is None


def used_by(connection: Connection, key: AgentKey) -> list[ObjectName]:
    """The objects of an agent's state and of its snapshots, on all models if model_id is empty."""
    rows = connection.execute(
        "SELECT DISTINCT o.kind, o.chain_hash, o.digest, o.generation FROM agents AS a"
        " JOIN object_refs AS r ON r.uid = a.uid JOIN objects AS o ON o.kind = r.kind AND o.chain_hash = r.chain_hash"
        " WHERE a.namespace = :namespace"
        " AND a.agent_id = :agent_id AND (a.model_id = :model_id OR :model_id = '')",
        key._asdict(),
    )
    return [*_named(rows)]


def attribute(connection: Connection, key: AgentKey, names: Iterable[ObjectName]) -> None:
    """Let this agent's deletion wait for those of these objects that have to go, whoever's turn computed them."""
    connection.executemany(
        f"UPDATE object_deletions SET namespace = ?, agent_id = ?, model_id = ? WHERE {_THIS}",
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


def begin(connection: Connection, location: str, cluster_id: str = "") -> Claim:
    """A claim to `location`, with a new session; a cluster has one for good, which all of its nodes have.

    An empty place is one to take only if no object of this directory, or cluster, can be elsewhere.
    """
    connection.execute(
        "INSERT INTO remote_place (id, owner, location, session, next_session, uploading)"
        " VALUES (1, ?, '', '', '', 1) ON CONFLICT DO NOTHING",
        (cluster_id or uuid.uuid4().hex,),
    )
    owner, before, *sessions = connection.execute(
        "SELECT owner, location, session, next_session FROM remote_place"
    ).fetchone()
    claim = Claim(
        owner,
        cluster_id or uuid.uuid4().hex,
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
    for table in ("objects", "object_refs"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("DELETE FROM object_deletions")
    connection.execute("UPDATE remote_place SET location = '', session = '', next_session = ''")
    return ("" if row is None else str(row[0])), int(count)


def any_objects(connection: Connection) -> bool:
    """Whether there may be objects of this directory anywhere."""
    statement = "SELECT EXISTS (SELECT 1 FROM objects) OR EXISTS (SELECT 1 FROM object_deletions)"
    return bool(connection.execute(statement).fetchone()[0])


def _named(rows: Iterable[Sequence[Any]]) -> Iterator[ObjectName]:
    return (ObjectName(FileKind(kind), *rest) for kind, *rest in rows)
