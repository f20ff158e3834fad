"""The database as ledger functions use it: SQLite's connection as it is, PostgreSQL's by an adapter.

Statements are SQL of both engines with SQLite's placeholders. No function asks which engine it is on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


class Cursor(Protocol):
    @property
    def description(self) -> Sequence[Any]:
        """A tuple for each column, its name first."""

    @property
    def rowcount(self) -> int:
        """Rows changed without RETURNING."""

    def fetchone(self) -> Any:
        """None after the last one."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection within a transaction, for one thread."""

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ..., /) -> Cursor:
        """Run a statement after those before it; PostgreSQL's is sent when a result is read, or with the COMMIT."""

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /) -> Cursor:
        """Run a statement, which returns nothing, for each of these."""


@dataclass(frozen=True)
class Differences:
    """SQLite's values, where engines differ."""

    for_change: str = ""
    """Ends a SELECT of rows to change: SQLite has one writer anyway."""
    change: str = "id"
    answers_later: bool = False
    """A statement is sent when its result is read."""
    last_change: str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'kv_changes'"
    """The highest change up to which no other will come."""


SQLITE = Differences()


_V = TypeVar("_V")
_AT_ONCE = 500


def pieces(values: Sequence[_V]) -> Iterator[Sequence[_V]]:
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))


def among(column: str, values: Sequence[object]) -> str:
    return f"{column} IN ({', '.join('?' * len(values))})"


def differences(connection: Connection) -> Differences:
    found: Differences = getattr(connection, "differences", SQLITE)
    return found


def ask(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], Any]:
    """Ask for a row, or None, read later by a call of the result: several questions wait once."""
    cursor = connection.execute(sql, parameters)
    if differences(connection).answers_later:
        return cursor.fetchone
    row = cursor.fetchone()
    return lambda: row


def insert(connection: Connection, table: str, row: Mapping[str, Any], returning: str = "") -> Any:
    statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    if not returning:
        connection.execute(statement, (*row.values(),))
        return None
    return connection.execute(f"{statement} RETURNING {returning}", (*row.values(),)).fetchone()[0]


def when_committed(connection: Connection, call: Callable[[], None]) -> None:
    """Call it when this transaction is committed, if it may be run again before that; else at once."""
    calls: list[Callable[[], None]] | None = getattr(connection, "when_committed", None)
    if calls is None:
        call()
    else:
        calls.append(call)
