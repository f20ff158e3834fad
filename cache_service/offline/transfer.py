"""Rows of a damaged database, copied one by one into a new one. What is copied is not yet known to hold together."""

import sqlite3
from typing import NamedTuple

from agentmem.keys import AgentKey
from cache_service import checksums
from cache_service.files import FileName, Kind
from cache_service.offline import lost_agents
from cache_service.offline.findings import CannotCheck
from cache_service.offline.salvage import Salvaged
from cache_service.references import FileOrigin, FileRow

UNKNOWN = "?"
"""The namespace of rows from a version that did not write it into them."""
_TABLES = ("segments", "agents", "turns", "snapshots", "workflow_records")


class Link(NamedTuple):
    """Where a segment stands, which can be known where its content is not."""

    parent: int | None
    parent_tokens: int


class Transferred(NamedTuple):
    """What the new database does not show.

    Links of segments that were not copied, agents whose rows were made again, and those of whom only the name is left,
    files with their origins, and tables that could not be read to their end.
    """

    links: dict[int, Link]
    made: list[AgentKey]
    lost: list[AgentKey]
    files: list[tuple[FileRow, FileOrigin]]
    damaged: list[str]


def transfer(source: sqlite3.Connection, target: sqlite3.Connection) -> Transferred:
    """Copy what can be read of ledgers, agents, turns, snapshots and workflow records. Raises CannotCheck if hopeless.

    `target` has this version's tables and no foreign keys enforced; `source` may be of an older version.
    """
    try:
        tables = {row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise CannotCheck(
            f"nothing can be recovered: the database's own table of contents is lost ({error})"
        ) from error
    if not {"segments", "agents"} <= tables:
        raise CannotCheck(
            "nothing can be recovered: the database has no ledgers and no agents, or they cannot be found"
        )
    damaged = [table for table in _TABLES if table in tables and _copy(source, target, table)]
    links = _links(source) if "segments" in damaged else {}
    made, lost = lost_agents.find(source, target) if "agents" in damaged else ([], [])
    files, is_damaged = _files(source) if "files" in tables else ([], False)
    return Transferred(links, made, lost, files, [*damaged, *(["files"] if is_damaged else [])])


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> bool:
    """Copy a table's columns that both have; whether some of it could not be read, or is not what was written."""
    known = {row[1] for row in target.execute(f"PRAGMA table_info({table})")}
    try:
        columns = [row[1] for row in source.execute(f"PRAGMA table_info({table})") if row[1] in known]
    except sqlite3.DatabaseError:
        return True
    is_summed = "checksum" in columns
    if is_summed:
        columns.remove("checksum")  # the target's triggers make it anew, so a wrong one would be forgotten
    intact = f"checksum IS {checksums.FUNCTION}({checksums.COLUMNS[table]})" if is_summed else "true"
    salvaged, refused = Salvaged(source, table, [*columns, intact]), False
    if "namespace" in known and "namespace" not in columns:
        columns.append("namespace")
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for _, *values, is_intact in salvaged.rows():
        try:
            values += [UNKNOWN] * (len(columns) - len(values))
            refused |= not is_intact or not target.execute(insert, values).rowcount
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


def _files(source: sqlite3.Connection) -> tuple[list[tuple[FileRow, FileOrigin]], bool]:
    salvaged = Salvaged(
        source,
        "files",
        [
            *("kind", "chain_hash", "first_token", "token_count", "size_bytes", "digest"),
            *("namespace", "agent_id", "model_id", "fingerprint", "parent"),
        ],
    )
    found = []
    for _, kind, chain_hash, first, count, size, digest, *origin in salvaged.rows():
        namespace, agent_id, model_id, fingerprint, parent = origin
        if kind in tuple(Kind):
            row = FileRow(FileName(Kind(kind), chain_hash), first, count, size, digest)
            found.append((row, FileOrigin(AgentKey(namespace, agent_id, model_id), fingerprint, parent)))
    return found, salvaged.is_damaged
