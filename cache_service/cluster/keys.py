"""Rows of callers' keys, which all nodes have in common. Functions of a connection, in one transaction.

What they mean is the gateways' affair: nothing here judges a caller.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cache_service.connection import Connection


class ApiKey(NamedTuple):
    """A row: the fields of gateway.edge.keys.ApiKey, times in microseconds since 1970."""

    id: str
    namespace: str
    sha256: str
    created: int
    expires: int | None
    label: str
    admin: int
    max_running: int | None
    max_per_minute: int | None


class Keys(NamedTuple):
    """All keys, and what names this state of them; "" before they were read."""

    version: str
    keys: Sequence[ApiKey]


class KeyTaken(Exception):
    """Another key has this id; the message says which id."""


NO_KEYS: Final = Keys("", ())
_COLUMNS: Final = ", ".join(ApiKey._fields)


def changed(connection: Connection, version: str) -> Keys | None:
    """The keys, unless they are still those of `version`.

    The version is read first: what is changed in between is read, too, and once more the next time.
    """
    (present,) = connection.execute("SELECT version FROM keys_version WHERE id = 1").fetchone()
    return None if present == version else Keys(str(present), every(connection))


def every(connection: Connection) -> list[ApiKey]:
    """All keys, in the order in which they were made."""
    return [ApiKey(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, id")]


def add(connection: Connection, keys: Iterable[ApiKey]) -> int:
    """Add keys, all or none, and leave those that are there as they are; how many were new. Raises KeyTaken."""
    known = {key.id: key for key in every(connection)}
    new = [key for key in keys if known.get(key.id) != key]
    for key in new:
        if key.id in known:
            raise KeyTaken(f"another key has the id {key.id}; revoke that one first")
    if new:
        places = ", ".join("?" * len(ApiKey._fields))
        connection.executemany(f"INSERT INTO keys ({_COLUMNS}) VALUES ({places})", new)
    return len(new)


def revoke(connection: Connection, key_id: str) -> bool:
    """Delete a key; whether it was there."""
    return connection.execute("DELETE FROM keys WHERE id = ?", (key_id,)).rowcount > 0
