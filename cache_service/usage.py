"""What namespaces take: bytes of KV and of ledgers, kept by the triggers of `schema`. Functions of a connection.

A segment counts 8 bytes a token (its id and its text's end) and its text, once however many branches stand on it; a
turn counts its record, and a record of a workflow run its summary and its payload.
"""

import sqlite3
from typing import NamedTuple


class Usage(NamedTuple):
    """Bytes of one namespace: files of KV, those in quarantine included; ledgers, with records of workflow runs."""

    kv: int
    ledger: int

    @property
    def total(self) -> int:
        """What a quota bounds."""
        return self.kv + self.ledger


def of(connection: sqlite3.Connection, namespace: str) -> Usage:
    """What a namespace takes."""
    row = connection.execute(
        "SELECT kv_bytes, ledger_bytes FROM namespaces WHERE namespace = ?", (namespace,)
    ).fetchone()
    return Usage(0, 0) if row is None else Usage(*row)


def of_all(connection: sqlite3.Connection) -> dict[str, Usage]:
    """What each namespace takes that has anything."""
    rows = connection.execute("SELECT namespace, kv_bytes, ledger_bytes FROM namespaces")
    return {namespace: Usage(kv, ledger) for namespace, kv, ledger in rows}


def sums(connection: sqlite3.Connection) -> dict[str, Usage]:
    """What each namespace takes, counted anew."""
    rows = connection.execute(
        "SELECT namespace, sum(kv), sum(ledger) FROM ("
        "SELECT namespace, size_bytes AS kv, 0 AS ledger FROM files"
        " UNION ALL SELECT namespace, size_bytes, 0 FROM quarantined"
        " UNION ALL SELECT namespace, 0, 8 * tokens + text_bytes FROM segments"
        " UNION ALL SELECT a.namespace, 0, length(t.record) FROM turns AS t JOIN agents AS a USING (uid)"
        " UNION ALL SELECT namespace, 0, length(summary) + length(payload) FROM workflow_records)"
        " WHERE namespace != '' GROUP BY namespace HAVING sum(kv) + sum(ledger) > 0"
    )
    return {namespace: Usage(kv, ledger) for namespace, kv, ledger in rows}


def recount(connection: sqlite3.Connection) -> None:
    """Count everything anew; nothing is written where it is counted right."""
    counted = sums(connection)
    if counted != of_all(connection):
        connection.execute("DELETE FROM namespaces")
        connection.executemany(
            "INSERT INTO namespaces (namespace, kv_bytes, ledger_bytes) VALUES (?, ?, ?)",
            [(namespace, *found) for namespace, found in counted.items()],
        )
