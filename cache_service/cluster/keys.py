"""Rows of callers' keys, which all nodes have in common. Functions of a connection, in one transaction."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cache_service.connection import Connection


class ApiKey(NamedTuple):
    """The fields of gateway.edge.keys.ApiKey, times in microseconds since 1970."""

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
    """All keys, and the version of this state; "" before they were read."""

    version: str
    keys: Sequence[ApiKey]


class KeyTaken(Exception):
    """Another key has this id; the message says which id."""


NO_KEYS: Final = Keys("", ())
_COLUMNS: Final = ", ".join(ApiKey._fields)


def changed(connection: Connection, version: str) -> Keys | None:
    """Return the keys, unless they are still those of `version`, which is read first."""
    (present,) = connection.execute("SELECT version FROM keys_version WHERE id = 1").fetchone()
    return None if present == version else Keys(str(present), every(connection))


def every(connection: Connection) -> list[ApiKey]:
    """In the order in which they were made."""
    return [ApiKey(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, id")]


def add(connection: Connection, keys: Iterable[ApiKey]) -> int:
    """Add keys, all or none, without changing those that are there; return how many were new. Raises KeyTaken."""
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
    """Return whether it was there."""
    return connection.execute("DELETE FROM keys WHERE id = ?", (key_id,)).rowcount > 0
