"""Rows of ledgers, copied from one engine to another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cache_service.connection import Connection
from cache_service.ledger.segments import digest
from cache_service.offline.findings import CannotCheck

_AT_ONCE: Final = 200
"""Rows in memory; one of a segment has about 50 kB."""


class Table(NamedTuple):
    """Read in the order of `key`. `mapped` are columns with ids of other tables."""

    name: str
    key: tuple[str, ...]
    mapped: Mapping[str, str]
    whose: str = "namespace = ?"


_OF_AGENT: Final = "uid IN (SELECT uid FROM agents WHERE namespace = ?)"
_OF_RUN: Final = "record IN (SELECT id FROM workflow_records WHERE namespace = ?)"
LEDGERS: Final = (
    Table("segments", ("id",), {"id": "segments", "parent_id": "segments"}),
    Table("agents", ("uid",), {"head_segment": "segments"}),
    Table("turns", ("uid", "version"), {"segment": "segments"}),
    Table("snapshots", ("id",), {"id": "snapshots", "head_segment": "segments"}, _OF_AGENT),
    Table("workflow_records", ("id",), {"id": "workflow_records"}),
    Table("workflow_parts", ("record", "number"), {"record": "workflow_records"}, _OF_RUN),
)
_NOT_COPIED: Final = {"node", "holder"}


def copy(
    source: Connection, target: Connection, *, renumber: bool, namespace: str | None, later: int
) -> dict[str, int]:
    """Copy all rows, or those of a namespace, and add `later` nanoseconds to times of use; return their numbers by
    table.

    `renumber`: PostgreSQL draws new ids, in the old order. Raises CannotCheck for damaged rows.
    """
    copied = dict.fromkeys((table.name for table in LEDGERS), 0)
    new_ids: dict[str, dict[int, int]] = {name: {} for name in copied}
    for table in LEDGERS:
        for rows in _pages(source, table, namespace):
            if table.name == "segments":
                _check_digests(rows)
            if "id" in table.mapped:
                old = [row["id"] for row in rows]
                drawn = _draw(target, table.name, len(old)) if renumber else old
                new_ids[table.name].update(zip(old, drawn, strict=True))
            for row in rows:
                _change(table, row, new_ids, later)
            names = [*rows[0]]
            target.executemany(
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
                [[*row.values()] for row in rows],
            )
            copied[table.name] += len(rows)
    return copied


def _pages(source: Connection, table: Table, namespace: str | None) -> Iterator[list[dict[str, Any]]]:
    whose, values = ("1 = 1", []) if namespace is None else (table.whose, [namespace])
    key, last = ", ".join(table.key), list[Any]()
    columns = _columns(source, table.name)
    while True:
        after = f" AND ({key}) > ({', '.join('?' * len(last))})" if last else ""
        found = source.execute(
            f"SELECT {', '.join(columns)} FROM {table.name} WHERE {whose}{after} ORDER BY {key} LIMIT {_AT_ONCE}",
            (*values, *last),
        ).fetchall()
        if not found:
            return
        rows = [dict(zip(columns, row, strict=True)) for row in found]
        last = [rows[-1][column] for column in table.key]
        yield rows


def _check_digests(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if digest(row) != row["digest"]:
            raise CannotCheck(f"segment {row['id']} is not what was written: its digest differs")


def _change(table: Table, row: dict[str, Any], ids: Mapping[str, Mapping[int, int]], later: int) -> None:
    for column, other in table.mapped.items():
        if row[column] is None:
            continue
        if row[column] not in ids[other]:
            key = ", ".join(str(row[name]) for name in table.key)
            problem = f"refers to row {row[column]} of {other}, which is not there"
            raise CannotCheck(f"table {table.name}, row {key}, {problem}")
        row[column] = ids[other][row[column]]
    if "digest" in row:
        row["digest"] = digest(row)
    if "used" in row:
        row["used"] += later


def _draw(target: Connection, table: str, count: int) -> list[int]:
    found = target.execute(f"SELECT nextval('{table}_id_seq') FROM generate_series(1, ?)", (count,))
    return sorted(number for (number,) in found)


def _columns(source: Connection, table: str) -> list[str]:
    names = [each[0] for each in source.execute(f"SELECT * FROM {table} LIMIT 0").description]
    return [name for name in names if name not in _NOT_COPIED]
