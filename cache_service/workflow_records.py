"""Durable records of workflow runs, opaque to the store. Functions of a connection, inside the caller's transaction."""

import sqlite3
from typing import Final, NamedTuple

from agentmem.errors import Aborted, NotFound
from cache_service import checksums

NEWEST: Final = 2**63 - 1
"""The end of the order of creation: a page before it is the first one."""


class Content(NamedTuple):
    """What a record says: `summary` in lists, too, `payload` where it is asked for by name."""

    summary: bytes
    payload: bytes


class Record(NamedTuple):
    """A run's record. `id` is its place in the order of creation; of a page's records the payload is empty."""

    id: int
    workflow_id: str
    version: int
    content: Content


def put(connection: sqlite3.Connection, namespace: str, workflow_id: str, version: int, content: Content) -> int:
    """Create (version 0) or replace a record; its new version.

    Raises Aborted if it isn't in this version, LedgerDamaged if what it replaces is damaged.
    """
    record = get(connection, namespace, workflow_id)
    present = 0 if record is None else record.version
    if present != version:
        raise _moved(present, version)
    if record is None:
        connection.execute(
            "INSERT INTO workflow_records (namespace, workflow_id, version, summary, payload) VALUES (?, ?, 1, ?, ?)",
            (namespace, workflow_id, *content),
        )
    else:
        connection.execute(
            "UPDATE workflow_records SET version = version + 1, summary = ?, payload = ? WHERE id = ?",
            (*content, record.id),
        )
    return present + 1


def get(connection: sqlite3.Connection, namespace: str, workflow_id: str) -> Record | None:
    """A record; None if there is none. Raises LedgerDamaged."""
    row = connection.execute(
        "SELECT checksum, id, version, summary, payload FROM workflow_records WHERE namespace = ? AND workflow_id = ?",
        (namespace, workflow_id),
    ).fetchone()
    if row is None:
        return None
    found, number, version, *content = row
    what = f"the record of workflow {workflow_id!r}"
    checksums.verify(what, number, namespace, workflow_id, version, *content, found=found)
    return Record(number, workflow_id, version, Content(*content))


def page(connection: sqlite3.Connection, namespace: str, before: int, limit: int) -> list[Record]:
    """Records of a namespace without their payloads, the newest first, from those created before `before` on.

    They are not verified: their checksums are of the payloads, too.
    """
    rows = connection.execute(
        "SELECT id, workflow_id, version, summary FROM workflow_records"
        " WHERE namespace = ? AND id < ? ORDER BY id DESC LIMIT ?",
        (namespace, before, limit),
    )
    return [
        Record(number, workflow_id, version, Content(summary, b"")) for number, workflow_id, version, summary in rows
    ]


def delete(connection: sqlite3.Connection, namespace: str, workflow_id: str, version: int) -> None:
    """Delete a record, damaged or not. Raises NotFound, and Aborted if it isn't in this version."""
    row = connection.execute(
        "SELECT id, version FROM workflow_records WHERE namespace = ? AND workflow_id = ?", (namespace, workflow_id)
    ).fetchone()
    if row is None:
        raise NotFound("workflow", workflow_id)
    number, present = row
    if present != version:
        raise _moved(present, version)
    connection.execute("DELETE FROM workflow_records WHERE id = ?", (number,))


def _moved(present: int, version: int) -> Aborted:
    return Aborted(f"the record is at version {present}, not {version}; read it and try again")
