"""Who this data directory is to the object store, and where. Functions of a connection, in the caller's transaction.

A claim is written down before it is made, and confirmed after, so that a crash in between locks nobody out.
"""

import sqlite3
import uuid

from cache_service.remote import Claim


def begin(connection: sqlite3.Connection, location: str, *, abandon: bool) -> Claim:
    """A claim to `location`, with a new session.

    An empty place is one to take only if no object of this directory can be elsewhere; `abandon` says that those are
    given up.
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
        may_create=abandon or location == before or not any_objects(connection),
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


def any_objects(connection: sqlite3.Connection) -> bool:
    """Whether there may be objects of this directory anywhere."""
    return (
        connection.execute(
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM objects) OR EXISTS (SELECT 1 FROM object_deletions)"
        ).fetchone()
        is not None
    )
