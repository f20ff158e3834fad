"""Callers' keys of a cluster, one opaque text."""

from typing import NamedTuple

from cache_service.connection import Connection


class Keys(NamedTuple):
    """The version is the text's SHA-256 in hexadecimal."""

    version: str
    text: bytes


def version(connection: Connection) -> str:
    return str(connection.execute("SELECT version FROM keys").fetchone()[0])


def get(connection: Connection) -> Keys:
    version, text = connection.execute("SELECT version, value FROM keys").fetchone()
    return Keys(str(version), bytes(text))


def put(connection: Connection, text: bytes, if_version: str) -> bool:
    """Replace the keys, unless they have another version by now."""
    return connection.execute("UPDATE keys SET value = ? WHERE version = ?", (text, if_version)).rowcount > 0
