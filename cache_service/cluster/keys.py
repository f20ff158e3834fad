"""Callers' keys of a cluster, one opaque text."""

import hashlib
from typing import Final, NamedTuple

from cache_service.connection import Connection


class Keys(NamedTuple):
    """The version is the text's SHA-256 in hexadecimal."""

    version: str
    text: bytes


_NONE: Final = Keys(hashlib.sha256().hexdigest(), b"")
"""After `DELETE FROM keys`."""


def version(connection: Connection) -> str:
    row = connection.execute("SELECT version FROM keys").fetchone()
    return _NONE.version if row is None else str(row[0])


def get(connection: Connection) -> Keys:
    row = connection.execute("SELECT version, value FROM keys").fetchone()
    return _NONE if row is None else Keys(str(row[0]), bytes(row[1]))


def put(connection: Connection, text: bytes, if_version: str) -> bool:
    """Replace the keys, unless they have another version by now."""
    connection.execute("INSERT INTO keys (id, value) VALUES (1, '') ON CONFLICT DO NOTHING")
    return connection.execute("UPDATE keys SET value = ? WHERE version = ?", (text, if_version)).rowcount > 0
