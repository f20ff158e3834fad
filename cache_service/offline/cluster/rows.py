"""Rows of ledgers, copied from one engine to another. Functions of two connections, each within a transaction.

Ids are drawn anew, in the order of the old ones, so a child's stays above its parent's. Checksums are of ids, too: each
row's is verified where it is read, and computed anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cache_service import checksums
from cache_service.connection import Connection, differences
from cache_service.offline.findings import CannotCheck

_AT_ONCE: Final = 200
"""Rows that are held in memory; one of a segment has about 50 kB."""


@dataclass(frozen=True)
class Table:
    """What of a table is copied. Rows are read in the order of `key`; `mapped` are columns with ids of other tables;
    `whose` is the condition that a row is of a namespace.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    whose: str = "namespace = ?"
    mapped: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_id(self) -> bool:
        """Whether its ids are drawn."""
        return self.key == ("id",)

    @property
    def sums(self) -> tuple[str, ...]:
        """The columns that a row's checksum is of; none where it has no checksum."""
        return tuple(checksums.COLUMNS[self.name].split(", ")) if self.name in checksums.COLUMNS else ()


_OF_AGENT: Final = "uid IN (SELECT uid FROM agents WHERE namespace = ?)"


def _table(name: str, key: str, columns: str, whose: str = "namespace = ?", **mapped: str) -> Table:
    return Table(name, tuple(key.split()), tuple(columns.split()), whose, mapped)


LEDGERS: Final = (
    _table(
        "segments",
        "id",
        "id namespace parent_id parent_tokens parent_bytes tokens text_bytes generated_tokens version turns"
        " tokenizer_hash opening_bytes template_time token_ids text offsets",
        parent_id="segments",
    ),
    _table(
        "agents",
        "uid",
        "uid namespace agent_id model_id version revision head_segment tokens text_bytes turns label messages"
        " message_hash created updated used pinned ttl delete_after context_policy template_time forked_uid"
        " forked_version",
        head_segment="segments",
    ),
    _table(
        "turns",
        "uid version",
        "uid version revision segment namespace request_id request_digest commit_id messages message_hash created"
        " record",
        segment="segments",
    ),
    _table(
        "snapshots",
        "id",
        "id uid name version revision head_segment tokens text_bytes turns messages message_hash automatic created",
        _OF_AGENT,
        head_segment="segments",
    ),
    _table("workflow_records", "id", "id namespace workflow_id version events bytes summary"),
    _table(
        "workflow_parts",
        "record number",
        "record number content",
        "record IN (SELECT id FROM workflow_records WHERE namespace = ?)",
        record="workflow_records",
    ),
)
"""In an order in which rows refer to earlier ones only."""

OBJECTS: Final = (
    _table(
        "objects",
        "kind chain_hash",
        "kind chain_hash namespace agent_id model_id fingerprint parent first_token token_count size_bytes digest"
        " present generation uploader",
    ),
    _table("object_refs", "uid kind chain_hash", "uid kind chain_hash", _OF_AGENT),
    _table(
        "snapshot_object_refs",
        "snapshot kind chain_hash",
        "snapshot kind chain_hash",
        f"snapshot IN (SELECT id FROM snapshots WHERE {_OF_AGENT})",
        snapshot="snapshots",
    ),
    _table(
        "object_deletions",
        "kind chain_hash digest generation",
        "kind chain_hash digest namespace agent_id model_id generation uploader",
    ),
)
"""What is in the object store, and who refers to it; after LEDGERS."""


@dataclass
class Copied:
    """How many rows of each table there were, and which ids the old ones have become."""

    rows: dict[str, int] = field(default_factory=dict)
    ids: dict[str, dict[int, int]] = field(default_factory=dict)


def copy(
    source: Connection, target: Connection, tables: Sequence[Table], copied: Copied, namespace: str | None, later: int
) -> None:
    """Copy all rows, or those of a namespace, and count them in `copied`. Agents were used `later` nanoseconds later.

    Raises CannotCheck where a row is not what was written, or refers to one that is not there.
    """
    for table in tables:
        copied.rows[table.name] = 0
        ids = copied.ids.setdefault(table.name, {})
        for rows in _pages(source, table, namespace):
            if table.has_id:
                drawn = _draw(target, table.name, len(rows), start=len(ids) + 1)
                ids.update(zip((row["id"] for row in rows), drawn, strict=True))
            for row in rows:
                _renumber(table, row, copied.ids)
                if "used" in row:
                    row["used"] += later
            _insert(target, table, rows)
            copied.rows[table.name] += len(rows)


def pages(source: Connection, table: Table, namespace: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """A table's rows with their checksums, some at a time, in the order of its key."""
    names = (*table.columns, *(("checksum",) if table.sums else ()))
    conditions, values = ([], []) if namespace is None else ([table.whose], [namespace])
    last: tuple[Any, ...] = ()
    while True:
        after = [f"({', '.join(table.key)}) > ({', '.join('?' * len(table.key))})"] if last else []
        where = " AND ".join([*conditions, *after]) or "1 = 1"
        order = f"ORDER BY {', '.join(table.key)} LIMIT {_AT_ONCE}"
        found = source.execute(
            f"SELECT {', '.join(names)} FROM {table.name} WHERE {where} {order}",
            (*values, *last),
        ).fetchall()
        rows = [dict(zip(names, row, strict=True)) for row in found]
        if not rows:
            return
        last = tuple(rows[-1][column] for column in table.key)
        yield rows


def is_whole(table: Table, row: Mapping[str, Any]) -> bool:
    """Whether a row is what was written."""
    return not table.sums or checksums.checksum(*(row[column] for column in table.sums)) == row["checksum"]


def named(table: Table, row: Mapping[str, Any]) -> str:
    """A row, in words."""
    return f"table {table.name}, row {', '.join(str(row[column]) for column in table.key)}"


def _pages(source: Connection, table: Table, namespace: str | None) -> Iterator[list[dict[str, Any]]]:
    for rows in pages(source, table, namespace):
        for row in rows:
            if not is_whole(table, row):
                raise CannotCheck(f"{named(table, row)}: it is not what was written: its checksum differs")
        yield rows


def _renumber(table: Table, row: dict[str, Any], ids: Mapping[str, Mapping[int, int]]) -> None:
    for column, other in (*table.mapped.items(), *((("id", table.name),) if table.has_id else ())):
        if row[column] is None:
            continue
        if row[column] not in ids[other]:
            raise CannotCheck(f"{named(table, row)}: it refers to row {row[column]} of {other}, which is not there")
        row[column] = ids[other][row[column]]


def _insert(target: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    names = list(table.columns)
    if table.sums and not differences(target).keeps_sums:
        names.append("checksum")
        for row in rows:
            row["checksum"] = checksums.checksum(*(row[column] for column in table.sums))
    target.executemany(
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        [[row[name] for name in names] for row in rows],
    )


def _draw(target: Connection, table: str, count: int, start: int) -> list[int]:
    """New ids, ascending. On SQLite the table was empty before."""
    if differences(target).keeps_sums:
        return list(range(start, start + count))
    found = target.execute(f"SELECT nextval('{table}_id_seq') FROM generate_series(1, ?)", (count,))
    return sorted(number for (number,) in found)
