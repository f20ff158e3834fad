"""The callers' keys of a cluster, one opaque text. Functions of a connection, in one transaction."""

from typing import NamedTuple

from cache_service.connection import Connection


class Keys(NamedTuple):
    """A text and its version, which is the SHA-256 of it in hexadecimal."""

    version: str
    text: bytes


def version(connection: Connection) -> str:
    return str(connection.execute("SELECT version FROM keys").fetchone()[0])


def get(connection: Connection) -> Keys:
    """Return the keys; the first ones are empty."""
    version, text = connection.execute("SELECT version, value FROM keys").fetchone()
    return Keys(str(version), bytes(text))


def put(connection: Connection, text: bytes, if_version: str) -> bool:
    """Replace the keys, and return True, unless they have another version by now."""
    return connection.execute("UPDATE keys SET value = ? WHERE version = ?", (text, if_version)).rowcount > 0
