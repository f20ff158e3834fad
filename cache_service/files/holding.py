"""Which states hold the published files: rows of warm.db, which follow the ledger. Functions of a connection to it.

A state is an agent's own (snapshot 0) or a snapshot's, by its id. A file is deleted with the last state on this disk
that holds it: its row in the transaction, the file after it. A file that no state has held yet stays, and is found by
its name.

The ledger records changes of states (`KVChange`) in the transaction that makes them; `follow` applies them here, later
and in order, also after a crash. Files that were published for a newer version than a change's stay.
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

OWN: Final = 0
"""In place of a snapshot's id: an agent's own state."""
WHOLE: Final = 2**62
"""In place of a number of tokens: all of a state."""


class KVChange(NamedTuple):
    """From now on a state holds those files of `source_uid` that end within `tokens`, or none.

    `snapshot` None: the agent's own state and all its snapshots'. With an `agent_id` (on any model, if `model_id` is
    empty) the files that this agent's turns computed are deleted.
    """

    id: int
    uid: str
    snapshot: int | None
    source_uid: str | None
    source_snapshot: int
    tokens: int
    version: int
    """The agent's own state then; the change is skipped where a newer one is published."""
    namespace: str
    agent_id: str | None
    model_id: str | None


class Standing(NamedTuple):
    """The ledger's word on a version whose files are published: see `kv_changes.standing`."""

    exists: bool
    """There is such an agent, or none is named."""
    is_known: bool
    """It is, or was, at that version."""
    snapshots: tuple[int, ...] = ()


class States(NamedTuple):
    """The ledger's word on the agents that files are of: versions by uid, all their snapshots, the last change that can
    be followed, and those that it has not forgotten.
    """

    versions: Mapping[str, int]
    snapshots: Set[int]
    last: int
    changes: Sequence[KVChange]


class Warmth(NamedTuple):
    """An agent's state on the disk: bytes and files in all, and blocks with their tokens."""

    bytes: int = 0
    files: int = 0
    blocks: int = 0
    tokens: int = 0


def belong(connection: sqlite3.Connection, ledger_id: str) -> str:
    """Let warm.db be of these ledgers, and forget holders of others; return the directory's name."""
    name, ledgers = connection.execute("SELECT name, ledgers FROM directory").fetchone()
    if ledgers != ledger_id:
        if ledgers:
            for table in ("held", "published"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("UPDATE followed SET change = 0")
        connection.execute("UPDATE directory SET ledgers = ?", (ledger_id,))
    return str(name)


def followed(connection: sqlite3.Connection) -> int:
    """Return the id of the last change that was followed."""
    return int(connection.execute("SELECT change FROM followed WHERE id = 1").fetchone()[0])


def follow(connection: sqlite3.Connection, changes: Sequence[KVChange]) -> Dropped:
    """Apply the ledger's changes since `followed`; return the files to unlink."""
    dropped = Dropped()
    for change in changes:
        dropped.add(_made(connection, change))
    if changes:
        last = max(change.id for change in changes)
        connection.execute("UPDATE followed SET change = ? WHERE id = 1", (last,))
    return dropped


def replace(
    connection: sqlite3.Connection, key: AgentKey, version: Version, names: Set[FileName], standing: Standing
) -> list[FileName]:
    """Let the agent's state consist of `names`, and snapshots of that version, too; return the files that only it held
    and no longer does, their rows gone.

    Does nothing if it never had that version, or a newer version's files are there.
    """
    for snapshot in standing.snapshots:
        _hold(connection, version.uid, snapshot, names)
    if not standing.is_known or published(connection, version.uid) > version.number:
        return []
    _publish(connection, version.uid, version.number)
    connection.execute("UPDATE published SET evicted = 0 WHERE uid = ?", (version.uid,))
    before = _change(connection, version.uid, OWN, names)
    return drop_unheld(connection, key.namespace, before - names)[0]


def extend(connection: sqlite3.Connection, version: Version, names: Iterable[FileName], standing: Standing) -> None:
    """Add `names` to the agent's state, until `replace` says of what it consists. Does nothing where that would."""
    if version.uid and standing.is_known and published(connection, version.uid) <= version.number:
        _hold(connection, version.uid, OWN, names)


def hold(connection: sqlite3.Connection, holders: Iterable[tuple[str, int]], name: FileName) -> None:
    """Add a file to states, by uid and snapshot."""
    for uid, snapshot in holders:
        _hold(connection, uid, snapshot, [name])


def withdraw(connection: sqlite3.Connection, namespace: str, uid: str, names: Iterable[FileName]) -> list[FileName]:
    """Take files out of an agent's own state; return those that no other state has, their rows gone."""
    withdrawn = list(names)
    _let_go(connection, uid, OWN, withdrawn)
    return drop_unheld(connection, namespace, withdrawn)[0]


def of(connection: sqlite3.Connection, uid: str, snapshot: int = OWN) -> set[FileName]:
    """Return the files of a state that are here."""
    rows = connection.execute("SELECT kind, chain_hash FROM held WHERE uid = ? AND snapshot = ?", (uid, snapshot))
    return set(starmap(named, rows))


def of_all(connection: sqlite3.Connection, uid: str) -> set[FileName]:
    """Return the files here of an agent's own state and its snapshots'."""
    return set(starmap(named, connection.execute("SELECT kind, chain_hash FROM held WHERE uid = ?", (uid,))))


def holders(connection: sqlite3.Connection, names: Iterable[FileName]) -> dict[FileRow, list[tuple[str, int]]]:
    """Return those of the named files that are here and held, with their holders by uid and snapshot."""
    found: dict[FileRow, list[tuple[str, int]]] = {}
    for name in names:
        for uid, snapshot, *row in connection.execute(
            f"SELECT uid, snapshot, {references.COLUMNS} FROM files JOIN held USING (kind, chain_hash)"
            " WHERE kind = ? AND chain_hash = ?",
            name,
        ):
            found.setdefault(references.described(row), []).append((uid, snapshot))
    return found


def holders_of_all(connection: sqlite3.Connection) -> set[tuple[str, int, FileName]]:
    """Return (uid, snapshot, file) of all files here."""
    rows = connection.execute("SELECT uid, snapshot, kind, chain_hash FROM held JOIN files USING (kind, chain_hash)")
    return {(uid, snapshot, named(*name)) for uid, snapshot, *name in rows}


def holding(connection: sqlite3.Connection, uids: Iterable[str]) -> set[str]:
    """Return the agents that hold files here, for themselves or for a snapshot."""
    return {uid for uid in uids if connection.execute("SELECT 1 FROM held WHERE uid = ? LIMIT 1", (uid,)).fetchone()}


def warm_uids(connection: sqlite3.Connection) -> set[str]:
    """Return the agents whose own states have a file here."""
    rows = connection.execute("SELECT DISTINCT uid FROM held JOIN files USING (kind, chain_hash) WHERE snapshot = 0")
    return {str(uid) for (uid,) in rows}


def fingerprint(connection: sqlite3.Connection, uid: str) -> str:
    """Return the fingerprint of an agent's published state; "" if none of it is here.

    While a streamed state is not wholly published, it may be the old one's.
    """
    row = connection.execute(
        "SELECT f.fingerprint FROM held AS h CROSS JOIN files AS f USING (kind, chain_hash)"
        " WHERE h.uid = ? AND h.snapshot = 0 LIMIT 1",
        (uid,),
    ).fetchone()
    return "" if row is None else str(row[0])


def warmth(connection: sqlite3.Connection, uids: Sequence[str]) -> dict[str, Warmth]:
    rows = connection.execute(
        f"SELECT j.value, sum(f.size_bytes), count(*), sum(f.kind = {FileKind.BLOCK:d}),"
        f" sum(f.token_count * (f.kind = {FileKind.BLOCK:d})) FROM json_each(?) AS j"
        " CROSS JOIN held AS h ON h.uid = j.value AND h.snapshot = 0 CROSS JOIN files AS f USING (kind, chain_hash)"
        " GROUP BY j.value",
        (json.dumps(uids),),
    )
    return dict.fromkeys(uids, Warmth()) | {str(uid): Warmth(*sums) for uid, *sums in rows}


def blocks(connection: sqlite3.Connection, uid: str, fingerprint: str = "") -> dict[int, int]:
    """Return ends of the blocks of an agent's own state here by their first tokens; of one fingerprint, "": of any."""
    rows = connection.execute(
        "SELECT f.first_token, max(f.first_token + f.token_count) FROM held AS h"
        " CROSS JOIN files AS f USING (kind, chain_hash)"
        f" WHERE h.uid = ? AND h.snapshot = 0 AND f.kind = {FileKind.BLOCK:d} AND ? IN ('', f.fingerprint)"
        " GROUP BY f.first_token",
        (uid, fingerprint),
    )
    return {int(first): int(end) for first, end in rows}


def held_bytes(connection: sqlite3.Connection, uids: Iterable[str]) -> int:
    """Return the bytes here of these agents and their snapshots; each file once."""
    (size,) = connection.execute(
        "SELECT coalesce(sum(f.size_bytes), 0) FROM (SELECT DISTINCT h.kind, h.chain_hash FROM json_each(?) AS j"
        " CROSS JOIN held AS h ON h.uid = j.value) AS names CROSS JOIN files AS f USING (kind, chain_hash)",
        (json.dumps(list(uids)),),
    ).fetchone()
    return int(size)


def drop_all(connection: sqlite3.Connection, uid: str, namespace: str) -> tuple[set[FileName], list[FileName], int]:
    """Let an agent and its snapshots hold nothing; return what they held, the files to unlink, and the bytes of
    these.
    """
    names = of_all(connection, uid)
    connection.execute("DELETE FROM held WHERE uid = ?", (uid,))
    return names, *drop_unheld(connection, namespace, names)


def drop_unheld(
    connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]
) -> tuple[list[FileName], int]:
    """Drop the rows of those of `names` that no state holds; return the files to unlink, and their bytes."""
    dropped, size = [], 0
    for name in names:
        row = connection.execute(
            "DELETE FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ? AND NOT EXISTS"
            " (SELECT 1 FROM held AS h WHERE h.kind = files.kind AND h.chain_hash = files.chain_hash)"
            " RETURNING size_bytes",
            (*name, namespace),
        ).fetchone()
        if row is not None:
            dropped.append(name)
            size += row[0]
    return dropped, size


def known(connection: sqlite3.Connection) -> list[str]:
    """Return the uids that `reconcile` asks the ledger about: all of which there is, or was, anything here."""
    tables = " UNION ".join(f"SELECT uid FROM {table}" for table in ("held", "published"))
    return [str(uid) for (uid,) in connection.execute(tables)]


def reconcile(connection: sqlite3.Connection, states: States) -> Dropped:
    """Follow the ledger, and forget holders that it does not have, as where a backup of it was restored; return the
    files to unlink. `states` are those of the agents that are `known`.
    """
    versions, snapshots, last, changes = states
    done = min(followed(connection), last)
    connection.execute("UPDATE followed SET change = ? WHERE id = 1", (done,))
    dropped = follow(connection, [change for change in changes if change.id > done])
    for uid, snapshot in connection.execute("SELECT DISTINCT uid, snapshot FROM held").fetchall():
        if uid not in versions or (snapshot != OWN and snapshot not in snapshots):
            for name in _change(connection, uid, snapshot, set()):
                files, size = drop_unheld(connection, references.namespace_of(connection, name) or "", [name])
                dropped.add(Dropped(files, freed_bytes=size))
    rows = connection.execute("SELECT uid, version FROM published").fetchall()
    ahead = [(uid,) for uid, version in rows if version > versions.get(uid, -1)]
    connection.executemany("DELETE FROM published WHERE uid = ?", ahead)
    return dropped


def follow_again(connection: sqlite3.Connection) -> None:
    """Follow all that the ledger has not forgotten once more."""
    connection.execute("UPDATE followed SET change = 0 WHERE id = 1")


def drop_nobodys(connection: sqlite3.Connection) -> Dropped:
    """Drop files that no state holds: their agents may be erased."""
    files = connection.execute(
        "DELETE FROM files WHERE NOT EXISTS (SELECT 1 FROM held AS h WHERE h.kind = files.kind"
        " AND h.chain_hash = files.chain_hash) RETURNING kind, chain_hash, size_bytes"
    ).fetchall()
    return Dropped([named(*row[:2]) for row in files], freed_bytes=sum(row[-1] for row in files))


def _made(connection: sqlite3.Connection, change: KVChange) -> Dropped:
    names: set[FileName] = set()
    if change.source_uid is not None and change.tokens >= WHOLE:
        names = of(connection, change.source_uid, change.source_snapshot)
    elif change.source_uid is not None:
        rows = connection.execute(
            "SELECT h.kind, h.chain_hash FROM held AS h CROSS JOIN files AS f USING (kind, chain_hash)"
            " WHERE h.uid = ? AND h.snapshot = ? AND f.first_token + f.token_count <= ?",
            (change.source_uid, change.source_snapshot, change.tokens),
        )
        names = set(starmap(named, rows))
    if change.snapshot is None:
        before = of_all(connection, change.uid)
        for table in ("held", "published"):
            connection.execute(f"DELETE FROM {table} WHERE uid = ?", (change.uid,))
    elif change.snapshot == OWN and published(connection, change.uid) > change.version:
        return Dropped()
    else:
        if change.snapshot == OWN:
            _publish(connection, change.uid, change.version)
        before = _change(connection, change.uid, change.snapshot, names)
    going = before - names
    if change.agent_id is not None:
        key = AgentKey(change.namespace, change.agent_id, change.model_id or "")
        going |= set(references.computed_by(connection, key))
    files, size = drop_unheld(connection, change.namespace, going)
    return Dropped(files, freed_bytes=size)


def published(connection: sqlite3.Connection, uid: str) -> int:
    """Return the version that an agent's own files are of; 0: of none yet."""
    row = connection.execute("SELECT version FROM published WHERE uid = ?", (uid,)).fetchone()
    return 0 if row is None else int(row[0])


def was_evicted(connection: sqlite3.Connection, uid: str) -> bool:
    """Return whether files of the agent's present state were dropped to make room."""
    return connection.execute("SELECT 1 FROM published WHERE uid = ? AND evicted = 1", (uid,)).fetchone() is not None


def _publish(connection: sqlite3.Connection, uid: str, version: int) -> None:
    connection.execute(
        "INSERT INTO published (uid, version) VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET version = excluded.version",
        (uid, version),
    )


def _hold(connection: sqlite3.Connection, uid: str, snapshot: int, names: Iterable[FileName]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO held (uid, snapshot, kind, chain_hash) VALUES (?, ?, ?, ?)",
        [(uid, snapshot, *name) for name in names],
    )


def _let_go(connection: sqlite3.Connection, uid: str, snapshot: int, names: Iterable[FileName]) -> None:
    connection.executemany(
        "DELETE FROM held WHERE uid = ? AND snapshot = ? AND kind = ? AND chain_hash = ?",
        [(uid, snapshot, *name) for name in names],
    )


def _change(connection: sqlite3.Connection, uid: str, snapshot: int, names: Set[FileName]) -> set[FileName]:
    """Let a state consist of `names`, writing the difference; return its files before."""
    before = of(connection, uid, snapshot)
    _hold(connection, uid, snapshot, names - before)
    _let_go(connection, uid, snapshot, before - names)
    return before
