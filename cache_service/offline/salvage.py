"""Reading rows of a damaged table: all that SQLite can still reach, one after the other, around what it cannot.

A table is a tree of pages by row id. Where a page is damaged, reading on fails; but a row behind it is found by its id
all the same, through the pages above. So rows are read in order until it fails, then the next id from which reading
goes on is searched for, and the ids in between are tried one by one. What hangs on a damaged inner page is lost.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

Row = tuple[Any, ...]

_MOST_PROBES = 4096
"""How many ids are tried one by one in a gap; a leaf of a table has fewer rows."""
_LAST_ID = 2**63 - 1


class Salvaged:
    """One table's readable rows. `is_damaged` is known when `rows` was read to its end."""

    def __init__(self, connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
        self._connection = connection
        self._select = f"SELECT rowid, {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid"
        self.is_damaged = False

    def rows(self) -> Iterator[Row]:
        """The rows in the order of their ids, each with its id first."""
        start = -_LAST_ID
        while True:
            last = start - 1
            try:
                for row in self._connection.execute(f"{self._select} >= ? ORDER BY rowid", (start,)):
                    yield row
                    last = row[0]
            except sqlite3.DatabaseError:
                self.is_damaged = True
            else:
                return
            first = max(last + 1, 0)
            again = self._readable_from(first)
            yield from self._probed(first, min(_LAST_ID if again is None else again, first + _MOST_PROBES))
            if again is None:
                return
            start = again

    def _probed(self, first: int, end: int) -> Iterator[Row]:
        for number in range(first, end):
            try:
                row = self._connection.execute(f"{self._select} = ?", (number,)).fetchone()
            except sqlite3.DatabaseError:
                continue
            if row is not None:
                yield row

    def _readable_from(self, first: int) -> int | None:
        """An id from which reading goes on, the nearest as far as is known; None if there is none."""
        step, failing = 1, first
        while not self._is_readable(first + step):
            failing = first + step
            step *= 2
            if first + step > _LAST_ID:
                return None
        ids = range(failing + 1, first + step)
        return ids.start + bisect_left(ids, True, key=self._is_readable)

    def _is_readable(self, first: int) -> bool:
        try:
            self._connection.execute(f"{self._select} >= ? ORDER BY rowid LIMIT 1", (first,)).fetchone()
        except sqlite3.DatabaseError:
            return False
        return True
