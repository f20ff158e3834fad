"""Durable records of workflow runs, opaque to the store. Functions of a connection, inside the caller's transaction."""

import sqlite3
from typing import NamedTuple

from agentmem.errors import Aborted


class Record(NamedTuple):
    """A run's record. `id` is its place in the order of creation."""

    id: int
    workflow_id: str
    version: int
    payload: bytes


def put(connection: sqlite3.Connection, namespace: str, workflow_id: str, version: int, payload: bytes) -> int:
    """Create (version 0) or replace a record; its new version. Raises Aborted if it isn't in this version."""
    record = get(connection, namespace, workflow_id)
    present = 0 if record is None else record.version
    if present != version:
        raise Aborted(f"the record is at version {present}, not {version}; read it and try again")
    if record is None:
        connection.execute(
            "INSERT INTO workflow_records (namespace, workflow_id, version, payload) VALUES (?, ?, 1, ?)",
            (namespace, workflow_id, payload),
        )
    else:
        connection.execute(
            "UPDATE workflow_records SET version = version + 1, payload = ? WHERE id = ?", (payload, record.id)
        )
    return present + 1


def get(connection: sqlite3.Connection, namespace: str, workflow_id: str) -> Record | None:
    """A record; None if there is none."""
    row = connection.execute(
        "SELECT id, workflow_id, version, payload FROM workflow_records WHERE namespace = ? AND workflow_id = ?",
        (namespace, workflow_id),
    ).fetchone()
    return None if row is None else Record(*row)


def page(connection: sqlite3.Connection, namespace: str, before: int | None, limit: int) -> list[Record]:
    """Records of a namespace, the newest first, from those created before `before` on."""
    rows = connection.execute(
        "SELECT id, workflow_id, version, payload FROM workflow_records"
        " WHERE namespace = ? AND (id < ? OR ? IS NULL) ORDER BY id DESC LIMIT ?",
        (namespace, before, before, limit),
    )
    return [Record(*row) for row in rows]
