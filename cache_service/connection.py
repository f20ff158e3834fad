"""What the functions of a ledger ask of a database: SQLite's connection as it is, and PostgreSQL's by an adapter.

Statements are SQL that both engines accept, with SQLite's placeholders: `?` with a sequence of values, `:name` with a
mapping. What has to be said differently is an attribute of `Differences`, named by what it does, so that no function
asks which engine it is on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def description(self) -> Sequence[Any]:
        """A tuple for each column, whose first element is its name."""

    @property
    def rowcount(self) -> int:
        """How many rows a statement without RETURNING has changed."""

    def fetchone(self) -> Any:
        """The next row, None behind the last one."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection within a transaction, to be used by one thread. `sqlite3.Connection` is one."""

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ..., /) -> Cursor:
        """Run one statement, behind those before it; PostgreSQL's is sent when a result is read, or with the COMMIT."""

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /) -> Cursor:
        """Run one statement, which returns nothing, for each of these parameters."""


@dataclass(frozen=True)
class Differences:
    """What one engine needs said that another does not; these are SQLite's."""

    for_change: str = ""
    """What a SELECT of rows that this transaction goes on to change ends with: SQLite has one writer anyway."""
    change: str = "id"
    """The column of kv_changes by whose values those who have files follow them: see `ledger.kv_changes`."""
    answers_later: bool = False
    """Whether a statement is sent when its result is read, and not when it is executed."""
    last_change: str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'kv_changes'"
    """The highest value of it up to which all changes can be read; none will come later."""


SQLITE = Differences()


_V = TypeVar("_V")
_AT_ONCE = 500
"""Values that one statement asks for."""


def pieces(values: Sequence[_V]) -> Iterator[Sequence[_V]]:
    """`values` in pieces, each of which one statement may ask for by `among`."""
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))


def among(column: str, values: Sequence[object]) -> str:
    """The condition that a column has one of these values, which are parameters."""
    return f"{column} IN ({', '.join('?' * len(values))})"


def differences(connection: Connection) -> Differences:
    """What is said differently on this connection."""
    found: Differences = getattr(connection, "differences", SQLITE)
    return found


def ask(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], Any]:
    """Ask for a row, or None, that is read later by a call of what this returns: who asks for several before it reads
    one waits once where the answers travel.

    SQLite's are read at once, or the statement would stay open where nobody reads it.
    """
    cursor = connection.execute(sql, parameters)
    if differences(connection).answers_later:
        return cursor.fetchone
    row = cursor.fetchone()
    return lambda: row


def insert(connection: Connection, table: str, row: Mapping[str, Any], returning: str = "") -> Any:
    """Insert a row; the value of its column `returning`, None without one."""
    statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    if not returning:
        connection.execute(statement, (*row.values(),))
        return None
    return connection.execute(f"{statement} RETURNING {returning}", (*row.values(),)).fetchone()[0]


def when_committed(connection: Connection, call: Callable[[], None]) -> None:
    """Call it when this transaction is committed, where one may be run again before that; else at once."""
    calls: list[Callable[[], None]] | None = getattr(connection, "when_committed", None)
    if calls is None:
        call()
    else:
        calls.append(call)
