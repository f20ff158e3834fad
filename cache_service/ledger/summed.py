"""Writing rows that have checksums (see checksums.py), on either engine. Functions of a connection.

SQLite's triggers compute the sums. PostgreSQL has no such function, so they are computed here, and its triggers refuse
a row that was changed without its sum.
"""

from collections.abc import Mapping
from typing import Any, Final

from cache_service import checksums
from cache_service.connection import Answer, Connection, ask, differences

_KEYS: Final = {
    "segments": ("id",),
    "agents": ("uid",),
    "snapshots": ("id",),
    "turns": ("uid", "version"),
    "workflow_records": ("id",),
    "workflow_parts": ("record", "number"),
}
"""The primary key of each table that has sums. A table with `id` draws it from its sequence."""
_COLUMNS: Final = {table: tuple(columns.split(", ")) for table, columns in checksums.COLUMNS.items()}


def draw(connection: Connection, table: str) -> Answer | None:
    """Draw the id of a row that is inserted later, to be read then; None where the row draws it itself."""
    if differences(connection).keeps_sums:
        return None
    return ask(connection, f"SELECT nextval('{table}_id_seq')")


def insert(connection: Connection, table: str, row: Mapping[str, Any], drawn: Answer | None = None) -> int:
    """Insert a row, given without its id, which may be `drawn`, and its sum; the id, 0 in a table without ids."""
    has_id = _KEYS[table] == ("id",)
    if not differences(connection).keeps_sums:
        if has_id:
            drawn = drawn or draw(connection, table)
            assert drawn is not None, "who keeps no sums draws ids"
            row = {"id": int(drawn.fetchone()[0]), **row}
        row = {**row, "checksum": _sum(table, row)}
        connection.execute(_inserting(table, row), (*row.values(),))
        return int(row.get("id", 0))
    if not has_id:
        connection.execute(_inserting(table, row), (*row.values(),))
        return 0
    (number,) = connection.execute(f"{_inserting(table, row)} RETURNING id", (*row.values(),)).fetchone()
    return int(number)


def replace(connection: Connection, table: str, row: Mapping[str, Any]) -> None:
    """Set these columns of the row that has this key: the key, all that the sum is of, and others.

    For who has read the row in this transaction, locked and verified.
    """
    changes = {column: value for column, value in row.items() if column not in _KEYS[table]}
    if not differences(connection).keeps_sums:
        changes["checksum"] = _sum(table, row)
    assigned = ", ".join(f"{column} = ?" for column in changes)
    this_row = " AND ".join(f"{column} = ?" for column in _KEYS[table])
    key = [row[column] for column in _KEYS[table]]
    connection.execute(f"UPDATE {table} SET {assigned} WHERE {this_row}", (*changes.values(), *key))


def update(connection: Connection, table: str, changes: Mapping[str, Any], **where: Any) -> None:
    """Set columns of the rows that have these values. A row whose sum is wrong keeps a wrong one."""
    assigned, values = ", ".join(f"{column} = ?" for column in changes), (*changes.values(),)
    condition = " AND ".join(f"{column} = ?" for column in where)
    if differences(connection).keeps_sums:
        connection.execute(f"UPDATE {table} SET {assigned} WHERE {condition}", (*values, *where.values()))
        return
    rows = connection.execute(
        f"SELECT {checksums.COLUMNS[table]}, checksum FROM {table} WHERE {condition}"
        f"{differences(connection).for_change}",
        (*where.values(),),
    ).fetchall()
    this_row = " AND ".join(f"{column} = ?" for column in _KEYS[table])
    for *found, checksum in rows:
        row = dict(zip(_COLUMNS[table], found, strict=True))
        new = checksums.checksum(*({**row, **changes}[column] for column in _COLUMNS[table]))
        if checksums.checksum(*found) != checksum:
            new = bytes(255 - byte for byte in new)  # is not the sum, and not the one before
        key = [row[column] for column in _KEYS[table]]
        connection.execute(f"UPDATE {table} SET {assigned}, checksum = ? WHERE {this_row}", (*values, new, *key))


def _inserting(table: str, row: Mapping[str, Any]) -> str:
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"


def _sum(table: str, row: Mapping[str, Any]) -> bytes:
    return checksums.checksum(*(row[column] for column in _COLUMNS[table]))
