"""Copies rows of a damaged database into a new one, which may not hold together yet.

Reading fails at a damaged page, so row ids are taken from a table's tree and its indexes, from both ends, and rows are
read by id.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from agentmem.validation import AgentKey
from cache_service.ledger import schema
from cache_service.ledger.segments import digest
from cache_service.ledger.workflow_records import TORN
from cache_service.offline.findings import CannotCheck

_KEYS = "SELECT namespace, agent_id, model_id FROM agents INDEXED BY sqlite_autoindex_agents_2"
_TABLES = ("segments", "agents", "turns", "snapshots", "workflow_records", "workflow_parts")


class Link(NamedTuple):
    """A segment's place, which may be known without its content."""

    parent: int | None
    parent_tokens: int


class Transferred(NamedTuple):
    """Agents of which only names are left, segments that were not copied, tables that could not be read to their
    end.
    """

    links: dict[int, Link]
    lost: list[AgentKey]
    damaged: list[str]


def transfer(source: sqlite3.Connection, target: sqlite3.Connection) -> Transferred:
    """Copy what is readable. Raises CannotCheck if that is hopeless. `target` has tables without enforced foreign
    keys.
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


def salvaged(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...] | None]:
    """Yield readable rows, None for each unreadable one, and a last None if there may be more."""
    numbers, is_whole = _numbers(connection, table)
    statement = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid = ?"
    for number in sorted(numbers):
        row = None
        with suppress(sqlite3.DatabaseError):
            row = connection.execute(statement, (number,)).fetchone()
        yield row
    if not is_whole:
        yield None


def _numbers(connection: sqlite3.Connection, table: str) -> tuple[set[int], bool]:
    """Return the row ids in a table and its indexes, and whether all of the table was readable."""
    found = set[int]()
    if _collect(connection, f"{table} NOT INDEXED ORDER BY rowid", found):
        return found, True
    indexes = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = ?", (table,))
    for tree in ["NOT INDEXED ORDER BY rowid", *(f"INDEXED BY {name} ORDER BY {{}}" for (name,) in indexes.fetchall())]:
        name = tree.split()[2]
        names = [row[2] for row in connection.execute(f"PRAGMA index_info({name})")] if "{}" in tree else []
        for order in ("ASC", "DESC"):
            by = ", ".join(f"{column} {order}" for column in names)
            if _collect(connection, f"{table} {tree.format(by)}{'' if names else f' {order}'}", found):
                break
    return found, False


def _collect(connection: sqlite3.Connection, rows: str, found: set[int]) -> bool:
    try:
        for (number,) in connection.execute(f"SELECT rowid FROM {rows}"):
            found.add(number)
    except sqlite3.DatabaseError:
        return False
    return True


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> bool:
    """Return whether something was unreadable or damaged."""
    columns = _columns(target, table)
    if source.execute("PRAGMA user_version").fetchone()[0] < schema.version():
        older = _columns(source, table)
        columns = [name for name in columns if name in older]  # the others have defaults
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    damaged = False
    for values in salvaged(source, table, columns):
        if values is None:
            damaged = True
            continue
        row = dict(zip(columns, values, strict=True))
        try:
            intact = table != "segments" or digest(row) == row["digest"]
            damaged |= not intact or not target.execute(insert, values).rowcount
        except sqlite3.Error:  # of a wrong type, which the store has not written
            damaged = True
    return damaged


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _links(source: sqlite3.Connection) -> dict[int, Link]:
    return {
        row[0]: Link(*row[1:])
        for row in salvaged(source, "segments", ["id", "parent_id", "parent_tokens"])
        if row is not None and isinstance(row[1], int | None) and isinstance(row[2], int)
    }


def _lost_agents(source: sqlite3.Connection, target: sqlite3.Connection) -> list[AgentKey]:
    there = {AgentKey(*row) for row in target.execute("SELECT namespace, agent_id, model_id FROM agents")}
    found = set[AgentKey]()
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.DatabaseError):
            for row in source.execute(f"{_KEYS} ORDER BY namespace {order}, agent_id {order}, model_id {order}"):
                found.add(AgentKey(*row))
    return sorted(found - there)
