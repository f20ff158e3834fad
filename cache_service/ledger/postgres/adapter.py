"""A connection of psycopg as the ledger's functions want it: SQLite's placeholders, and values as SQLite gives them.

Numbers are bigint, or what sums of bigint are, and come as int; blobs are bytea. Texts may have any character: NUL,
which PostgreSQL's cannot have, travels in two characters that keep the bytewise order.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import NumericBinaryLoader

from cache_service.connection import Differences

READING: Final = Differences(
    keeps_sums=False,
    has_nodes=True,
    change="xid",
    last_change="SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1",
)
DIFFERENCES: Final = replace(READING, for_change=" FOR NO KEY UPDATE")
"""What a transaction that writes says differently: whoever reads an agent in order to change it holds its row."""

_TOKENS: Final = re.compile(r"'(?:[^']|'')*'|::|\?|:(?P<name>[a-z_]+)|%")
_ESCAPED: Final = (("\x01", "\x01\x02"), ("\0", "\x01\x01"))


class Connection:
    """One connection, within a transaction. It satisfies `cache_service.connection.Connection`."""

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]", differences: Differences) -> None:
        self._connection = connection
        self.differences = differences

    def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /
    ) -> "psycopg.Cursor[tuple[Any, ...]]":
        """Run one statement. Raises psycopg.Error."""
        return self._connection.cursor(binary=True).execute(_translated(sql), parameters)

    def executemany(
        self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /
    ) -> "psycopg.Cursor[tuple[Any, ...]]":
        """Run one statement for each of these parameters, in one go. Raises psycopg.Error."""
        cursor = self._connection.cursor(binary=True)
        cursor.executemany(_translated(sql), parameters)
        return cursor


@lru_cache(maxsize=1024)
def _translated(sql: str) -> bytes:
    """A statement with psycopg's placeholders."""
    return _TOKENS.sub(_placeholder, sql).encode()


def _placeholder(found: re.Match[str]) -> str:
    token = found[0]
    if token == "?":
        return "%s"
    if found["name"]:
        return f"%({found['name']})s"
    return token.replace("%", "%%")


class _Int(Dumper):
    """Every int, and bool, as bigint: one prepared statement whatever the size of its values."""

    oid = psycopg.postgres.types["int8"].oid
    format = Format.BINARY

    def dump(self, obj: int) -> bytes:
        return int(obj).to_bytes(8, "big", signed=True)


class _Text(Dumper):
    oid = psycopg.postgres.types["text"].oid

    def dump(self, obj: str) -> bytes:
        return _escaped(obj).encode()


class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return _unescaped(str(data, "utf-8"))


class _WholeNumber(NumericBinaryLoader):
    """A sum of bigint, which is numeric."""

    def load(self, data: Buffer) -> int:  # type: ignore[override]
        return int(super().load(data))


def _escaped(text: str) -> str:
    if "\0" in text or "\x01" in text:
        for plain, escaped in _ESCAPED:
            text = text.replace(plain, escaped)
    return text


def _unescaped(text: str) -> str:
    if "\x01" in text:
        for plain, escaped in reversed(_ESCAPED):
            text = text.replace(escaped, plain)
    return text


def register(adapters: AdaptersMap) -> None:
    """Let connections with these adapters take and give values as SQLite does."""
    for kind in (int, bool):
        adapters.register_dumper(kind, _Int)
    adapters.register_dumper(str, _Text)
    adapters.register_loader("text", _TextLoader)
    adapters.register_loader("numeric", _WholeNumber)
