"""New versions of agents: a number that grows by one, and a revision that no other state ever had."""

import secrets
import sqlite3
import uuid

from agentmem.kv.ledger import Version
from agentmem.validation import REVISION_BYTES


def first() -> Version:
    """The version of an agent that is made now."""
    return Version(uuid.uuid4().hex, 1, revision())


def following(version: Version) -> Version:
    """The version behind one; the first of a new agent behind NO_VERSION."""
    return version._replace(number=version.number + 1, revision=revision()) if version.uid else first()


def revision() -> bytes:
    """The revision of a state that is made now."""
    return secrets.token_bytes(REVISION_BYTES)


def draw_missing(connection: sqlite3.Connection) -> None:
    """Give present states and snapshots that have no revision one, as the migration to schema 3 does."""
    connection.execute("UPDATE agents SET revision = randomblob(16) WHERE revision = x''")
    for table in ("turns", "snapshots"):
        connection.execute(
            f"UPDATE {table} SET revision = a.revision FROM agents AS a"
            f" WHERE a.uid = {table}.uid AND a.version = {table}.version AND {table}.revision = x''"
        )
    missing = connection.execute("SELECT DISTINCT uid, version FROM snapshots WHERE revision = x''").fetchall()
    connection.executemany(
        "UPDATE snapshots SET revision = ? WHERE uid = ? AND version = ?", [(revision(), *each) for each in missing]
    )
