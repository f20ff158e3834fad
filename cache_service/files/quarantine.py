"""Files that failed verification: kept with their reason, out of everybody's reach, and erased with their agent.

Functions of a connection, inside the caller's transaction; the files themselves are moved by `blocks`.
"""

import sqlite3
from collections.abc import Iterable

from agentmem.identity import FileName
from agentmem.validation import AgentKey


def add(connection: sqlite3.Connection, namespace: str, name: FileName, file: str, digest: bytes | None = None) -> bool:
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


def drop_of(connection: sqlite3.Connection, key: AgentKey, names: Iterable[FileName]) -> list[str]:
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


def forget(connection: sqlite3.Connection, files: Iterable[str]) -> None:
    """Drop the rows of files that aren't there any more."""
    connection.executemany("DELETE FROM quarantined WHERE file = ?", [(file,) for file in files])


def files(connection: sqlite3.Connection) -> set[str]:
    """The names of all quarantined files."""
    return {row[0] for row in connection.execute("SELECT file FROM quarantined")}
