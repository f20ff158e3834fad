"""The agents that hold published files, by versions: rows of warm.db. Functions of a connection.

A file belongs to a range of an agent's versions, open as long as the present state has it; a snapshot is a version. A
file is deleted with its last range: its row in the transaction, the file after it. One that nobody has held yet stays.

The ledger logs moves and erasures in the transaction that makes them. `follow` applies them later, in order, also after
a crash or again: it ends with what the ledger's present states say.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import starmap
from typing import Final, NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey
from cache_service.files import references
from cache_service.files.references import Dropped, FileRow, named

WHOLE: Final = 2**62
_IS_ITS: Final = "h.kind = f.kind AND h.chain_hash = f.chain_hash"


class Range(NamedTuple):
    """`last` None: also the present version."""

    uid: str
    first: int
    last: int | None = None


class KVChange(NamedTuple):
    """An agent has, from `version` on, the files of a source's version that end within `tokens`.

    Without a source something was erased: with an `agent_id` (on any model, if `model_id` is empty) the agent.
    """

    id: int
    uid: str
    version: int
    source_uid: str | None
    source_version: int
    tokens: int
    namespace: str
    agent_id: str | None
    model_id: str | None


class Standing(NamedTuple):
    """The ledger's word on a version whose files are published."""

    exists: bool
    """There is such an agent, or none is named."""
    is_known: bool
    """It is, or was, at that version."""
    kept: tuple[int, ...] = ()
    """Snapshots, and sources of unfollowed moves."""


class States(NamedTuple):
    """The ledger's word: versions of agents and kept ones, by uid; the last change that can be followed."""

    versions: Mapping[str, int]
    kept: Mapping[str, Sequence[int]]
    last: int
    changes: Sequence[KVChange]


class Warmth(NamedTuple):
    bytes: int = 0
    files: int = 0
    blocks: int = 0
    tokens: int = 0


def belong(connection: sqlite3.Connection, ledger_id: str) -> str:
    """Let warm.db be of these ledgers, and forget others' rows; return the directory's name."""
    name, ledgers = connection.execute("SELECT name, ledgers FROM directory").fetchone()
    if ledgers != ledger_id:
        if ledgers:
            for table in ("held", "published"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("UPDATE followed SET change = 0")
        connection.execute("UPDATE directory SET ledgers = ?", (ledger_id,))
    return str(name)


def followed(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT change FROM followed WHERE id = 1").fetchone()[0])


def follow(connection: sqlite3.Connection, states: States) -> Dropped:
    """Return the files to unlink."""
    for change in states.changes:
        if change.source_uid is not None:
            names = of(connection, change.source_uid, change.source_version, change.tokens)
            _move(connection, change.uid, change.version, names)
    dropped = Dropped()
    for change in states.changes:
        going = _settle(connection, change.uid, states)
        if change.source_uid is not None:
            going |= _settle(connection, change.source_uid, states)
        if change.agent_id is not None:
            key = AgentKey(change.namespace, change.agent_id, change.model_id or "")
            going |= set(references.computed_by(connection, key))
        files, size = drop_unheld(connection, change.namespace, going)
        dropped.add(Dropped(files, freed_bytes=size))
    if states.changes:
        last = max(change.id for change in states.changes)
        connection.execute("UPDATE followed SET change = ? WHERE id = 1", (last,))
    return dropped


def publish(
    connection: sqlite3.Connection,
    key: AgentKey,
    version: Version,
    names: Set[FileName],
    standing: Standing,
    *,
    adds: bool = False,
) -> tuple[list[FileName], set[FileName]]:
    """Let a version consist of `names`, or also of these if it `adds`; return the files that nobody holds now, and
    those that it holds from now on.

    Does nothing if the agent never had that version. If a newer one is published, only a kept one gets them.
    """
    uid, number, _ = version
    if not standing.is_known:
        return [], set()
    if published(connection, uid) > number:
        late = {*names} - of(connection, uid, number) if number in standing.kept else set()
        for name in late:
            hold(connection, [Range(uid, number, number)], name)
        return [], late
    before = of(connection, uid)
    if adds:
        _change(connection, uid, number, names | before)
        return [], {*names} - before
    _change(connection, uid, number, names)
    _publish(connection, uid, number)
    connection.execute("UPDATE published SET evicted = 0 WHERE uid = ?", (uid,))
    gone = drop_unheld(connection, key.namespace, _closed(connection, uid, standing.kept))[0]
    return gone, {*names} - before


def hold(connection: sqlite3.Connection, ranges: Iterable[Range], name: FileName) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO held (uid, first_version, last_version, kind, chain_hash)"
        " SELECT :uid, :first, :last, :kind, :chain_hash WHERE :last IS NOT NULL OR NOT EXISTS (SELECT 1 FROM held"
        " WHERE uid = :uid AND kind = :kind AND chain_hash = :chain_hash AND last_version IS NULL)",
        [{**each._asdict(), **name._asdict()} for each in ranges],
    )


def withdraw(
    connection: sqlite3.Connection, namespace: str, version: Version, names: Set[FileName], kept: Sequence[int]
) -> list[FileName]:
    """Take files out of the present state; return those that nobody holds."""
    uid, number, _ = version
    _change(connection, uid, max(number, published(connection, uid)), of(connection, uid) - names)
    return drop_unheld(connection, namespace, names | _closed(connection, uid, kept))[0]


def of(connection: sqlite3.Connection, uid: str, version: int | None = None, tokens: int = WHOLE) -> set[FileName]:
    """Return the files of a version, None: of the present state; with `tokens` those here that end within them."""
    within, ends = "", ""
    if version is not None:
        within = f"first_version <= {version:d} AND last_version >= {version:d} OR first_version <= {version:d} AND "
    if tokens < WHOLE:
        ends = f" AND EXISTS (SELECT 1 FROM files AS f WHERE {_IS_ITS} AND f.first_token + f.token_count <= {tokens:d})"
    statement = f"SELECT kind, chain_hash FROM held AS h WHERE uid = ? AND ({within}last_version IS NULL){ends}"
    return set(starmap(named, connection.execute(statement, (uid,))))


def of_all(connection: sqlite3.Connection, uid: str) -> set[FileName]:
    return set(starmap(named, connection.execute("SELECT kind, chain_hash FROM held WHERE uid = ?", (uid,))))


def ranges(connection: sqlite3.Connection, names: Iterable[FileName]) -> dict[FileRow, list[Range]]:
    found: dict[FileRow, list[Range]] = {}
    for name in names:
        for row in connection.execute(
            f"SELECT uid, first_version, last_version, {references.COLUMNS} FROM files"
            " JOIN held USING (kind, chain_hash) WHERE kind = ? AND chain_hash = ?",
            name,
        ):
            found.setdefault(references.described(row[3:]), []).append(Range(*row[:3]))
    return found


def all_ranges(connection: sqlite3.Connection) -> set[tuple[Range, FileName]]:
    rows = connection.execute(
        "SELECT uid, first_version, last_version, kind, chain_hash FROM held JOIN files USING (kind, chain_hash)"
    )
    return {(Range(*row[:3]), named(*row[3:])) for row in rows}


def holding(connection: sqlite3.Connection, uids: Iterable[str]) -> set[str]:
    return {uid for uid in uids if connection.execute("SELECT 1 FROM held WHERE uid = ? LIMIT 1", (uid,)).fetchone()}


def warm_uids(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute(
        "SELECT DISTINCT uid FROM held JOIN files USING (kind, chain_hash) WHERE last_version IS NULL"
    )
    return {str(uid) for (uid,) in rows}


def fingerprint(connection: sqlite3.Connection, uid: str) -> str:
    """Return "" without files here; of a former state until a streamed one is whole."""
    row = connection.execute(
        "SELECT f.fingerprint FROM held AS h CROSS JOIN files AS f USING (kind, chain_hash)"
        " WHERE h.uid = ? AND h.last_version IS NULL LIMIT 1",
        (uid,),
    ).fetchone()
    return "" if row is None else str(row[0])


def warmth(connection: sqlite3.Connection, uids: Sequence[str]) -> dict[str, Warmth]:
    rows = connection.execute(
        f"SELECT j.value, sum(f.size_bytes), count(*), sum(f.kind = {FileKind.BLOCK:d}),"
        f" sum(f.token_count * (f.kind = {FileKind.BLOCK:d})) FROM json_each(?) AS j"
        " CROSS JOIN held AS h ON h.uid = j.value AND h.last_version IS NULL"
        " CROSS JOIN files AS f USING (kind, chain_hash) GROUP BY j.value",
        (json.dumps(uids),),
    )
    return dict.fromkeys(uids, Warmth()) | {str(uid): Warmth(*sums) for uid, *sums in rows}


def blocks(connection: sqlite3.Connection, uid: str, fingerprint: str = "") -> dict[int, int]:
    """Return ends of blocks by their first tokens; fingerprint "": any."""
    rows = connection.execute(
        "SELECT f.first_token, max(f.first_token + f.token_count) FROM held AS h"
        " CROSS JOIN files AS f USING (kind, chain_hash)"
        f" WHERE h.uid = ? AND h.last_version IS NULL AND f.kind = {FileKind.BLOCK:d} AND ? IN ('', f.fingerprint)"
        " GROUP BY f.first_token",
        (uid, fingerprint),
    )
    return {int(first): int(end) for first, end in rows}


def held_bytes(connection: sqlite3.Connection, uids: Iterable[str]) -> int:
    """Return the bytes of these agents and their snapshots, each file once."""
    (size,) = connection.execute(
        "SELECT coalesce(sum(f.size_bytes), 0) FROM (SELECT DISTINCT h.kind, h.chain_hash FROM json_each(?) AS j"
        " CROSS JOIN held AS h ON h.uid = j.value) AS names CROSS JOIN files AS f USING (kind, chain_hash)",
        (json.dumps(list(uids)),),
    ).fetchone()
    return int(size)


def drop_all(connection: sqlite3.Connection, uid: str, namespace: str) -> tuple[set[FileName], list[FileName], int]:
    """Return what they held, the files to unlink, and their bytes."""
    names = of_all(connection, uid)
    connection.execute("DELETE FROM held WHERE uid = ?", (uid,))
    return names, *drop_unheld(connection, namespace, names)


def drop_unheld(
    connection: sqlite3.Connection, namespace: str | None, names: Iterable[FileName]
) -> tuple[list[FileName], int]:
    """Drop rows that nobody holds (namespace None: in any); return the files to unlink, and their bytes."""
    dropped, size = [], 0
    for name in names:
        row = connection.execute(
            "DELETE FROM files AS f WHERE kind = ? AND chain_hash = ? AND namespace = ifnull(?, namespace)"
            f" AND NOT EXISTS (SELECT 1 FROM held AS h WHERE {_IS_ITS}) RETURNING size_bytes",
            (*name, namespace),
        ).fetchone()
        if row is not None:
            dropped.append(name)
            size += row[0]
    return dropped, size


def known(connection: sqlite3.Connection) -> list[str]:
    """Return the uids of which there is, or was, anything here."""
    tables = " UNION ".join(f"SELECT uid FROM {table}" for table in ("held", "published"))
    return [str(uid) for (uid,) in connection.execute(tables)]


def reconcile(connection: sqlite3.Connection, states: States) -> Dropped:
    """Follow the ledger, and forget what it does not have, as where a backup of it was restored."""
    going = set[FileName]()
    for uid, version in states.versions.items():
        lost = "DELETE FROM held WHERE uid = ? AND first_version > ? RETURNING kind, chain_hash"
        going.update(starmap(named, connection.execute(lost, (uid, version)).fetchall()))
        connection.execute("UPDATE held SET last_version = NULL WHERE uid = ? AND last_version >= ?", (uid, version))
        connection.execute("DELETE FROM published WHERE uid = ? AND version > ?", (uid, version))
    dropped = follow(connection, states)
    for uid in known(connection):
        going |= _settle(connection, uid, states)
    files, size = drop_unheld(connection, None, going)
    dropped.add(Dropped(files, freed_bytes=size))
    connection.execute("UPDATE followed SET change = ? WHERE id = 1", (states.last,))
    return dropped


def drop_nobodys(connection: sqlite3.Connection) -> Dropped:
    """Drop what nobody holds: its agents may be erased."""
    files = connection.execute(
        f"DELETE FROM files AS f WHERE NOT EXISTS (SELECT 1 FROM held AS h WHERE {_IS_ITS})"
        " RETURNING kind, chain_hash, size_bytes"
    ).fetchall()
    return Dropped([named(*row[:2]) for row in files], freed_bytes=sum(row[-1] for row in files))


def published(connection: sqlite3.Connection, uid: str) -> int:
    """Return the version that an agent's files are of; 0: none."""
    row = connection.execute("SELECT version FROM published WHERE uid = ?", (uid,)).fetchone()
    return 0 if row is None else int(row[0])


def was_evicted(connection: sqlite3.Connection, uid: str) -> bool:
    return connection.execute("SELECT 1 FROM published WHERE uid = ? AND evicted = 1", (uid,)).fetchone() is not None


def _publish(connection: sqlite3.Connection, uid: str, version: int) -> None:
    connection.execute(
        "INSERT INTO published (uid, version) VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET version = excluded.version",
        (uid, version),
    )


def _move(connection: sqlite3.Connection, uid: str, version: int, names: Set[FileName]) -> None:
    """Let an agent have these files, unless a newer version's are published."""
    if published(connection, uid) < version:
        _change(connection, uid, version, names)
        _publish(connection, uid, version)


def _change(connection: sqlite3.Connection, uid: str, version: int, names: Set[FileName]) -> None:
    before = of(connection, uid)
    connection.executemany(
        "UPDATE held SET last_version = ? WHERE uid = ? AND kind = ? AND chain_hash = ? AND last_version IS NULL",
        [(version - 1, uid, *name) for name in before - names],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO held (uid, kind, chain_hash, first_version) VALUES (?, ?, ?, ?)",
        [(uid, *name, version) for name in names - before],
    )


def _settle(connection: sqlite3.Connection, uid: str, states: States) -> set[FileName]:
    """Let an agent hold nothing that the ledger does not have; return what goes."""
    kept = states.kept.get(uid, ())
    if kept or uid in states.versions:
        return _closed(connection, uid, kept)
    names = of_all(connection, uid)
    for table in ("held", "published"):
        connection.execute(f"DELETE FROM {table} WHERE uid = ?", (uid,))
    return names


def _closed(connection: sqlite3.Connection, uid: str, kept: Sequence[int]) -> set[FileName]:
    """Forget ranges without the present or a kept version; return their files."""
    rows = connection.execute(
        "DELETE FROM held WHERE uid = ? AND last_version IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM json_each(?) AS j WHERE j.value BETWEEN first_version AND last_version)"
        " RETURNING kind, chain_hash",
        (uid, json.dumps(kept)),
    )
    return set(starmap(named, rows.fetchall()))
