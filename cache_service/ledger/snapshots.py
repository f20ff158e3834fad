"""Snapshots: named states of agents, by reference. Functions of a connection.

Those named `auto-<version>` are made when tokens are dropped, and only the last few stay.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from agentmem.errors import AlreadyExists, NotFound
from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey, automatic_snapshot
from cache_service.connection import Connection, insert
from cache_service.ledger import agents, kv_changes, object_references, segments
from cache_service.ledger.agents import State
from cache_service.ledger.clock import Moment
from cache_service.ledger.segments import Head

AUTOMATIC_KEPT = 4


class Snapshot(NamedTuple):
    """`version` had this state. `created` is in nanoseconds since 1970."""

    id: int
    name: str
    version: Version
    head: Head
    messages: int
    message_hash: bytes
    automatic: int
    """1: made when tokens were dropped."""
    created: int


def create(connection: Connection, key: AgentKey, name: str, now: Moment) -> Snapshot:
    """Raises NotFound, and AlreadyExists if another version has the name."""
    state = agents.existing(connection, key)
    known = find(connection, state.version.uid, name)
    if known is None:
        return _add(connection, state, name, automatic=False, now=now)
    if known.version != state.version:
        raise AlreadyExists(f"snapshot {name!r} is of version {known.version.number}; choose another name")
    return known


def add_automatic(connection: Connection, state: State, now: Moment) -> list[int]:
    """Return surplus automatic snapshots."""
    _add(connection, state, automatic_snapshot(state.version.number), automatic=True, now=now)
    surplus = connection.execute(
        "SELECT id FROM snapshots WHERE uid = ? AND automatic != 0 ORDER BY id DESC LIMIT ? OFFSET ?",
        (state.version.uid, 2**63 - 1, AUTOMATIC_KEPT),
    )
    return [row[0] for row in surplus.fetchall()]


def drop(connection: Connection, key: AgentKey, uid: str, snapshots: Iterable[int]) -> None:
    """Delete snapshots, and the ledger that only they used."""
    for number in snapshots:
        delete = "DELETE FROM snapshots WHERE id = ? RETURNING head_segment"
        segments.drop_unused(connection, connection.execute(delete, (number,)).fetchone())
        object_references.settle(connection, uid)
        kv_changes.end(connection, key.namespace, uid)


def find(connection: Connection, uid: str, name: str) -> Snapshot | None:
    rows = connection.execute(f"{_SELECT} WHERE uid = ? AND name = ?", (uid, name))
    return next(map(_snapshot, rows), None)


def existing(connection: Connection, uid: str, name: str) -> Snapshot:
    """Raises NotFound."""
    found = find(connection, uid, name)
    if found is None:
        raise NotFound("snapshot", name)
    return found


def of_version(connection: Connection, uid: str, version: int) -> Snapshot | None:
    rows = connection.execute(f"{_SELECT} WHERE uid = ? AND version = ? ORDER BY id DESC LIMIT 1", (uid, version))
    return next(map(_snapshot, rows), None)


def page(connection: Connection, key: AgentKey, before: int | None, limit: int) -> list[Snapshot]:
    """Return snapshots, newest first, before the id `before`. Raises NotFound."""
    uid = agents.existing(connection, key).version.uid
    rows = connection.execute(
        f"{_SELECT} WHERE uid = ? AND id < ? ORDER BY id DESC LIMIT ?",
        (uid, 2**63 - 1 if before is None else before, limit),
    )
    return list(map(_snapshot, rows))


def delete(connection: Connection, key: AgentKey, name: str) -> None:
    """Erase a snapshot, what only it used, and answers of turns on no branch. Raises NotFound."""
    uid = agents.existing(connection, key).version.uid
    drop(connection, key, uid, [existing(connection, uid, name).id])
    connection.execute("DELETE FROM turns WHERE uid = ? AND segment IS NULL", (uid,))


_SELECT = (
    "SELECT id, name, uid, version, revision, head_segment, tokens, text_bytes, turns, messages, message_hash,"
    " automatic, created FROM snapshots"
)


def _snapshot(row: tuple[Any, ...]) -> Snapshot:
    number, name, *rest = row
    return Snapshot(number, name, Version(*rest[:3]), Head(*rest[3:7]), *rest[7:])


def _add(connection: Connection, state: State, name: str, *, automatic: bool, now: Moment) -> Snapshot:
    uid = state.version.uid
    row = {"uid": uid, "name": name, **state.columns, "automatic": automatic, "created": now.wall}
    insert(connection, "snapshots", row)
    return existing(connection, uid, name)
