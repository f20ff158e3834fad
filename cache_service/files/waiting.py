"""Files that wait to be uploaded to the object store: rows of warm.db. Functions of a connection, inside the caller's
transaction.

A trigger puts a file here when a state holds it, where there is an object store; what has a copy already is found out
when its turn comes.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from agentmem.kv.blockfile import BLOCK_TOKENS, FileKind, FileName
from cache_service.files import holding, references
from cache_service.files.references import FileRow


class Waiting(NamedTuple):
    """A file to upload, and the states that hold it, by uid and snapshot. `id` is another one when more states do."""

    id: int
    file: FileRow
    holders: list[tuple[str, int]]


def begin(connection: sqlite3.Connection, copied: Iterable[FileName]) -> None:
    """Upload from now on: what is held and has no copy, as of a time without an object store, and what comes."""
    begins = connection.execute("INSERT OR IGNORE INTO uploading (id) VALUES (1)").rowcount > 0
    have = set() if begins else set(copied)  # states that came meanwhile refer to no copy yet
    add(connection, [name for name in references.all_names(connection) if name not in have])


def leave(connection: sqlite3.Connection) -> None:
    """Upload nothing from now on."""
    for table in ("uploading", "uploads"):
        if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():
            connection.execute(f"DELETE FROM {table}")


def add(connection: sqlite3.Connection, names: Iterable[FileName]) -> None:
    """Let those of these be uploaded that are here and held, if anything is."""
    connection.executemany(
        "INSERT OR IGNORE INTO uploads (last, kind, chain_hash)"
        f" SELECT f.kind = {FileKind.BLOCK:d} AND f.token_count < {BLOCK_TOKENS}, f.kind, f.chain_hash FROM files AS f"
        " WHERE f.kind = ? AND f.chain_hash = ? AND EXISTS (SELECT 1 FROM uploading) AND EXISTS"
        " (SELECT 1 FROM held AS h WHERE h.kind = f.kind AND h.chain_hash = f.chain_hash)",
        list(names),
    )


def count(connection: sqlite3.Connection) -> int:
    """How many wait."""
    return int(connection.execute("SELECT count(*) FROM uploads").fetchone()[0])


def following(connection: sqlite3.Connection, limit: int) -> list[Waiting]:
    """The next ones, at most `limit`."""
    rows = connection.execute(
        f"SELECT u.id, {references.COLUMNS} FROM uploads AS u JOIN files AS f USING (kind, chain_hash)"
        " ORDER BY u.last, u.id LIMIT ?",
        (limit,),
    ).fetchall()
    described = [(number, references.described(row)) for number, *row in rows]
    return [Waiting(number, file, holding.holders(connection, file.name)) for number, file in described]


def end(connection: sqlite3.Connection, done: Iterable[int], failed: Iterable[int]) -> None:
    """Some, by their ids, need not be uploaded any more; some have to be tried again, after all others."""
    connection.executemany("DELETE FROM uploads WHERE id = ?", [(number,) for number in done])
    # By new rows: an id that an UPDATE chose would be drawn for another file, too, and then end that one's wait.
    connection.executemany(
        "INSERT OR REPLACE INTO uploads (last, kind, chain_hash)"
        " SELECT last, kind, chain_hash FROM uploads WHERE id = ?",
        [(number,) for number in failed],
    )
