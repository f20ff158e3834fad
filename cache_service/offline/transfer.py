"""Rows of a damaged database, copied one by one into a new one. What is copied is not yet known to hold together.

A table is a tree of pages by row id. Where a page is damaged, reading on fails; but a row behind it is found by its id
all the same, through the pages above. So rows are read in order until it fails, then the next id from which reading
goes on is searched for, and the ids in between are tried one by one. What hangs on a damaged inner page is lost.

Agents whose rows are lost are named as far as the index of their names can be read.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agentmem.kv.blockfile import FileKind
from agentmem.validation import AgentKey
from cache_service.files.references import COLUMNS, FileOrigin, FileRow, described
from cache_service.ledger.segments import digest
from cache_service.ledger.workflow_records import TORN
from cache_service.offline.findings import CannotCheck

_KEYS = "SELECT namespace, agent_id, model_id FROM agents INDEXED BY sqlite_autoindex_agents_2"
Row = tuple[Any, ...]

_MOST_PROBES = 4096
"""How many ids are tried one by one in a gap; a leaf of a table has fewer rows."""
_LAST_ID = 2**63 - 1
_TABLES = ("segments", "agents", "turns", "snapshots", "workflow_records", "workflow_parts")


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


class Link(NamedTuple):
    """Where a segment stands, which can be known where its content is not."""

    parent: int | None
    parent_tokens: int


class Transferred(NamedTuple):
    """What the new database does not show: of the agents `lost` only names are left.

    `links` are of segments that were not copied, `damaged` tables that could not be read to their end.
    """

    links: dict[int, Link]
    lost: list[AgentKey]
    damaged: list[str]


def transfer(source: sqlite3.Connection, target: sqlite3.Connection) -> Transferred:
    """Copy what can be read of ledgers, agents, turns, snapshots and workflow records. Raises CannotCheck if hopeless.

    `target` has this version's tables and no foreign keys enforced.
    """
    try:
        tables = {row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise CannotCheck(f"nothing can be recovered: the database's table of contents is lost ({error})") from error
    if not {"segments", "agents"} <= tables:
        raise CannotCheck("nothing can be recovered: no ledgers and no agents can be found in the database")
    damaged = [table for table in _TABLES if table in tables and _copy(source, target, table)]
    torn = target.execute(f"DELETE FROM workflow_records WHERE {TORN}").rowcount
    target.execute("DELETE FROM workflow_parts WHERE record NOT IN (SELECT id FROM workflow_records)")
    if torn and not any(table.startswith("workflow") for table in damaged):
        damaged.append("workflow_records")
    links = _links(source) if "segments" in damaged else {}
    return Transferred(links, _lost_agents(source, target) if "agents" in damaged else [], damaged)


def readable_files(source: sqlite3.Connection) -> Iterator[tuple[FileRow, FileOrigin]]:
    """What can be read of rows of files; none where there is no such table."""
    try:
        if source.execute("SELECT 1 FROM sqlite_master WHERE name = 'files'").fetchone() is None:
            return
    except sqlite3.DatabaseError:
        return
    for row in Salvaged(source, "files", COLUMNS.split(", ")).rows():
        if row[1] in tuple(FileKind):
            yield described(row[1:])


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> bool:
    """Copy a table's columns that both have; whether some of it could not be read, or is not what was written."""
    columns = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
    salvaged, refused = Salvaged(source, table, columns), False
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for _, *values in salvaged.rows():
        row = dict(zip(columns, values, strict=True))
        try:
            intact = table != "segments" or digest(row) == row["digest"]
            refused |= not intact or not target.execute(insert, values).rowcount
        except sqlite3.Error:  # a value of another type than the column's: no row that the store has written
            refused = True
    return salvaged.is_damaged or refused


def _links(source: sqlite3.Connection) -> dict[int, Link]:
    rows = Salvaged(source, "segments", ["id", "parent_id", "parent_tokens"]).rows()
    return {
        number: Link(parent, parent_tokens)
        for _, number, parent, parent_tokens in rows
        if isinstance(number, int) and isinstance(parent_tokens, int) and isinstance(parent, int | None)
    }


def _lost_agents(source: sqlite3.Connection, target: sqlite3.Connection) -> list[AgentKey]:
    """Agents that the index of names knows, up to the first page of it that is damaged, from both ends, and whose rows
    were not copied.
    """
    there = {AgentKey(*row) for row in target.execute("SELECT namespace, agent_id, model_id FROM agents")}
    found = set[AgentKey]()
    for order in ("ASC", "DESC"):
        try:
            found.update(AgentKey(*row) for row in source.execute(f"{_KEYS} ORDER BY 1 {order}"))
            break
        except sqlite3.DatabaseError:
            continue
    return sorted(found - there)
