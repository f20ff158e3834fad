"""A connection of psycopg with SQLite's placeholders and values.

A NUL in a text travels as two characters that keep the bytewise order. A statement is sent when a result is read, with
all before it; the last ones go with COMMIT: a function costs as many round trips as it has places where it goes on by
what it has read. The first failure ends the rest, and is raised where a result is read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import NumericBinaryLoader

from cache_service.connection import Differences

BRINGING: Final = 0x61677464
"""The class of the advisory lock of imports, which write no kv_changes."""
_WRITERS_OF_NONE: Final = (
    "SELECT l.transactionid FROM pg_locks AS l JOIN pg_locks AS a USING (virtualtransaction)"
    " WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted"
    f" AND a.locktype = 'advisory' AND a.classid = {BRINGING} AND a.granted"
)
READING: Final = Differences(
    answers_later=True,
    change="xid",
    last_change=(
        "SELECT coalesce(min(x.xid::text::bigint), pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - 1"
        f" FROM pg_snapshot_xip(pg_current_snapshot()) AS x (xid) WHERE x.xid::xid NOT IN ({_WRITERS_OF_NONE})"
    ),
)
DIFFERENCES: Final = replace(READING, for_change=" FOR NO KEY UPDATE")
"""Transactions that write lock agents that they read."""

_TOKENS: Final = re.compile(r"'(?:[^']|'')*'|::|\?|:(?P<name>[a-z_]+)|%")
_ESCAPED: Final = (("\x01", "\x01\x02"), ("\0", "\x01\x01"))


class Result:
    """A `cache_service.connection.Cursor`; all of it raises psycopg.Error."""

    def __init__(self, cursor: "psycopg.Cursor[tuple[Any, ...]]", send: Callable[[], None]) -> None:
        self._cursor = cursor
        self._send = send

    @property
    def description(self) -> Sequence[Any]:
        self._send()
        return self._cursor.description or ()

    @property
    def rowcount(self) -> int:
        self._send()
        return self._cursor.rowcount

    @property
    def ended(self) -> str | None:
        self._send()
        return self._cursor.statusmessage

    def fetchone(self) -> Any:
        self._send()
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        self._send()
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        self._send()
        return iter(self._cursor)


class Connection:
    """A `cache_service.connection.Connection`, until the first failure."""

    def __init__(
        self,
        connection: "psycopg.Connection[tuple[Any, ...]]",
        pipeline: psycopg.Pipeline,
        begin: str,
        differences: Differences,
    ) -> None:
        self._connection, self._pipeline = connection, pipeline
        self._unsent: list[Callable[[], object]] = []
        self._failed: psycopg.Error | None = None
        self.differences = differences
        self.when_committed: list[Callable[[], None]] = []
        self.execute(begin)

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Result:
        if len(self._unsent) >= _AT_ONCE:
            self.send()
        cursor = self._connection.cursor(binary=True)
        self._unsent.append(partial(cursor.execute, _translated(sql), parameters))
        return Result(cursor, self.send)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /) -> Result:
        cursor = self._connection.cursor(binary=True)
        self._unsent.append(partial(cursor.executemany, _translated(sql), parameters))
        self.send()
        return Result(cursor, self.send)

    def send(self) -> None:
        if self._failed is not None:
            raise self._failed
        unsent, self._unsent = self._unsent, []
        try:
            for run in unsent:
                run()
            if unsent:
                # The server counts a transaction as idle only after a sync.
                self._pipeline.sync()
        except psycopg.Error as error:
            self._failed = error
            raise


_AT_ONCE: Final = 32


@lru_cache(maxsize=1024)
def _translated(sql: str) -> bytes:
    return _TOKENS.sub(_placeholder, sql).encode()


def _placeholder(found: re.Match[str]) -> str:
    token = found[0]
    if token == "?":
        return "%s"
    if found["name"]:
        return f"%({found['name']})s"
    return token.replace("%", "%%")


class _Int(Dumper):
    """One prepared statement, whatever the size of values."""

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
    for kind in (int, bool):
        adapters.register_dumper(kind, _Int)
    adapters.register_dumper(str, _Text)
    adapters.register_loader("text", _TextLoader)
    adapters.register_loader("numeric", _WholeNumber)
