"""Rows of objects in the ledger: copies of files, deletions, and whose the place is.

Triggers put an object without a use among the deletions.
"""

import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.connection import Connection, among
from cache_service.files.holding import Range
from cache_service.files.references import COLUMNS, FileRow, described
from cache_service.ledger import object_references
from cache_service.tiers.remote.contract import ObjectName


class Object(NamedTuple):
    file: FileRow
    generation: str = ""

    @property
    def name(self) -> ObjectName:
        return ObjectName(*self.file.name, self.file.digest, self.generation)


def find(connection: Connection, namespace: str, names: Iterable[FileName]) -> list[Object]:
    statement = (
        f"SELECT generation, {COLUMNS} FROM objects WHERE kind = ? AND chain_hash = ? AND namespace = ? AND present = 1"
    )
    rows = (row for name in names for row in connection.execute(statement, (*name, namespace)))
    return [Object(described(row), generation) for generation, *row in rows]


def exists(connection: Connection, name: ObjectName) -> bool:
    return connection.execute(f"SELECT 1 FROM objects WHERE {_THIS} AND present = 1", name).fetchone() is not None


_NAME = "kind, chain_hash, digest, generation"
_THIS = "kind = ? AND chain_hash = ? AND digest = ? AND generation = ?"


class Begun(NamedTuple):
    """Files whose upload begins, and those that another node is uploading."""

    uploads: list[Object]
    others: list[FileName]


def begin_uploads(
    connection: Connection,
    files: Iterable[tuple[FileRow, list[Range]]],
    uploader: str = "",
    live: Set[str] = frozenset(),
) -> Begun:
    """Note that uploads begin, and which states use them. A file that has a copy needs none; a repeated upload keeps
    its key.

    In a cluster `uploader` is this node, and `live` are others.
    """
    begun = Begun([], [])
    for file, ranges in files:
        name = file.name
        row = connection.execute(
            "SELECT digest, present, generation, uploader FROM objects WHERE kind = ? AND chain_hash = ?", name
        ).fetchone()
        digest, present, generation, by = row or (b"", 0, "", "")
        if not present and by != uploader and by in live:
            begun.others.append(name)
            continue
        if not present and (digest, by) != (file.digest, uploader):  # none, a gone node's, or of other bytes
            give_up(connection, [name], by)
            generation = secrets.token_hex(8)
            connection.execute(
                f"INSERT INTO objects ({COLUMNS}, present, generation, uploader)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
                (*file.columns, generation, uploader),
            )
        is_used = object_references.add(connection, ranges, name)
        if not present and is_used:
            begun.uploads.append(Object(file, generation))
        elif not present:
            give_up(connection, [name], uploader)
    return begun


def end_uploads(
    connection: Connection, done: Mapping[ObjectName, list[Range]], tried: Iterable[ObjectName] = ()
) -> None:
    """Note that the `done` are there, used by these states, too; those that were `tried` may be.

    Another node may have taken this one for gone, and dropped their rows.
    """
    for name, ranges in done.items():
        if connection.execute(f"UPDATE objects SET present = 1 WHERE {_THIS}", name).rowcount:
            object_references.add(connection, ranges, name.file)
    disown(connection, [*done, *tried])


def give_up(connection: Connection, names: Iterable[FileName], uploader: str) -> None:
    """Delete them where they may be."""
    connection.executemany(
        "DELETE FROM objects WHERE kind = ? AND chain_hash = ? AND present = 0 AND uploader = ?",
        [(*name, uploader) for name in names],
    )


def present(connection: Connection) -> set[ObjectName]:
    return set(_named(connection.execute(f"SELECT {_NAME} FROM objects WHERE present = 1")))


def forget(connection: Connection, names: Iterable[ObjectName]) -> None:
    connection.executemany(f"DELETE FROM objects WHERE {_THIS}", names)


def disown(connection: Connection, names: Iterable[ObjectName]) -> int:
    """Delete those that no row knows; return how many."""
    known = f"SELECT 1 FROM objects WHERE {_THIS}"
    unknown = [name for name in dict.fromkeys(names) if connection.execute(known, name).fetchone() is None]
    connection.executemany(
        "INSERT INTO object_deletions (kind, chain_hash, digest, generation, namespace, agent_id, model_id)"
        " VALUES (?, ?, ?, ?, '', '', '') ON CONFLICT DO NOTHING",
        unknown,
    )
    return len(unknown)


def any_held_back(connection: Connection, uploader: str) -> bool:
    row = connection.execute("SELECT 1 FROM object_deletions WHERE uploader = ? LIMIT 1", (uploader,)).fetchone()
    return row is not None


def end_all_uploads(connection: Connection, uploader: str) -> None:
    """Give up the uploads of a node that has just started, so that deletions do not wait for them."""
    connection.execute("DELETE FROM objects WHERE present = 0 AND uploader = ?", (uploader,))
    release(connection, uploader)


def release(connection: Connection, uploader: str) -> None:
    connection.execute("UPDATE object_deletions SET uploader = '' WHERE uploader = ?", (uploader,))


def deletions(connection: Connection, limit: int, others: Set[str] = frozenset()) -> dict[int, ObjectName]:
    """Return the next ones, by their rows' numbers, but for what `others` may be uploading."""
    nodes = ["", *sorted(others)]
    rows = connection.execute(
        f"SELECT id, {_NAME} FROM object_deletions WHERE uploader = '' OR NOT {among('uploader', nodes)}"
        " ORDER BY id LIMIT ?",
        (*nodes, limit),
    ).fetchall()
    return dict(zip((number for number, *_ in rows), _named(name for _, *name in rows), strict=True))


def end_deletions(connection: Connection, numbers: Iterable[int]) -> bool:
    """Return whether there is nothing more to delete."""
    connection.executemany("DELETE FROM object_deletions WHERE id = ?", [(number,) for number in numbers])
    return connection.execute("SELECT 1 FROM object_deletions LIMIT 1").fetchone() is None


def used_by(connection: Connection, key: AgentKey) -> list[ObjectName]:
    """`key` without model_id: on all models."""
    rows = connection.execute(
        "SELECT DISTINCT o.kind, o.chain_hash, o.digest, o.generation FROM agents AS a"
        " JOIN object_refs AS r ON r.uid = a.uid JOIN objects AS o ON o.kind = r.kind AND o.chain_hash = r.chain_hash"
        " WHERE a.namespace = :namespace"
        " AND a.agent_id = :agent_id AND (a.model_id = :model_id OR :model_id = '')",
        key._asdict(),
    )
    return [*_named(rows)]


def attribute(connection: Connection, key: AgentKey, names: Iterable[ObjectName]) -> None:
    """Let this agent's deletion wait for those of these objects that have to go."""
    connection.executemany(
        f"UPDATE object_deletions SET namespace = ?, agent_id = ?, model_id = ? WHERE {_THIS}",
        [(*key, *name) for name in names],
    )


def waiting(connection: Connection, key: AgentKey) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM object_deletions WHERE namespace = ? AND agent_id = ?"
        " AND (model_id = ? OR model_id = '' OR ? = '')",
        (*key, key.model_id),
    ).fetchone()
    return int(count)


def backlog(connection: Connection) -> tuple[int, int]:
    """Return how many deletions there are to do, and the bytes of what is there."""
    deletions, size = connection.execute(
        "SELECT (SELECT count(*) FROM object_deletions),"
        " (SELECT coalesce(sum(size_bytes), 0) FROM objects WHERE present = 1)"
    ).fetchone()
    return deletions, size


def begin(connection: Connection, location: str, cluster_id: str = "", uploader: str = "") -> tuple[str, bool]:
    """Return who we are at the place, and whether that may be empty: no object can be elsewhere."""
    connection.execute(
        "INSERT INTO remote_place (id, owner, location) VALUES (1, ?, '') ON CONFLICT DO NOTHING",
        (cluster_id or uuid.uuid4().hex,),
    )
    end_all_uploads(connection, uploader)
    owner, before = connection.execute("SELECT owner, location FROM remote_place").fetchone()
    return str(owner), location == before or not any_objects(connection)


def confirm(connection: Connection, location: str) -> None:
    connection.execute("UPDATE remote_place SET location = ?", (location,))


def left_at(connection: Connection) -> str:
    """Return where there are objects, or ""."""
    row = connection.execute("SELECT location FROM remote_place").fetchone()
    return str(row[0]) if row is not None and any_objects(connection) else ""


def abandon(connection: Connection) -> tuple[str, int]:
    location = left_at(connection)
    (count,) = connection.execute("SELECT count(*) FROM objects WHERE present = 1").fetchone()
    for table in ("objects", "object_refs", "object_deletions"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("UPDATE remote_place SET location = ''")
    return location, int(count)


def any_objects(connection: Connection) -> bool:
    statement = "SELECT EXISTS (SELECT 1 FROM objects) OR EXISTS (SELECT 1 FROM object_deletions)"
    return bool(connection.execute(statement).fetchone()[0])


def _named(rows: Iterable[Sequence[Any]]) -> Iterator[ObjectName]:
    return (ObjectName(FileKind(kind), *rest) for kind, *rest in rows)
