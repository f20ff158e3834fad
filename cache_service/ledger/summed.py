"""Writing rows that have checksums (see checksums.py), on either engine. Functions of a connection.

SQLite's triggers compute the sums. PostgreSQL has no such function, so they are computed here, and its triggers refuse
a row that was changed without its sum.
"""

from collections.abc import Mapping
from typing import Any, Final

from cache_service import checksums
from cache_service.connection import Connection, differences

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


def insert(connection: Connection, table: str, row: Mapping[str, Any]) -> int:
    """Insert a row, given without its id and its sum; the id, 0 in a table without ids."""
    has_id = _KEYS[table] == ("id",)
    if not differences(connection).keeps_sums:
        row = _summed(table, {"id": _next_id(connection, table), **row} if has_id else row)
    statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    if not has_id:
        connection.execute(statement, (*row.values(),))
        return 0
    (number,) = connection.execute(f"{statement} RETURNING id", (*row.values(),)).fetchone()
    return int(number)


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


def _summed(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "checksum": checksums.checksum(*(row[column] for column in _COLUMNS[table]))}


def _next_id(connection: Connection, table: str) -> int:
    (number,) = connection.execute(f"SELECT nextval('{table}_id_seq')").fetchone()
    return int(number)
