"""The ledgers of a stopped store's directory, moved into a cluster; the directory is a node's afterwards.

A crash leaves what a repetition makes the old directory or the finished import. First a file says in the directory
which import has begun; while it is there no store starts on the directory. Then one transaction of PostgreSQL brings
everything over, and the import's id with it, so that its repetition knows whether it was done; if it was, it does what
is left to do in the directory: warm.db follows, and store.db gets another name.
"""

import json
import sqlite3
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cache_service.cluster import nodes
from cache_service.connection import Connection, among, pieces
from cache_service.files import holding, warm_database
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import open_private, sync, sync_directory
from cache_service.files.references import Dropped
from cache_service.ledger import kv_changes
from cache_service.ledger.postgres.adapter import BRINGING
from cache_service.ledger.postgres.settings import Settings
from cache_service.offline import database, ledgers, warm_index
from cache_service.offline.cluster import rows
from cache_service.offline.cluster.server import opened
from cache_service.offline.database import IMPORTING, alone, reading, writing
from cache_service.offline.findings import CannotCheck, Finding
from cache_service.offline.tree import Tree

_IMPORTED: Final = "store.db-imported-"
_SHARDS: Final = 64
"""Rows of a namespace's bytes that other transactions write: ../../ledger/postgres/migrations/01_schema.sql."""
_NAMED: Final = 10
"""Of how many conflicts the names are told."""


class Refused(CannotCheck):
    """The cluster has some of it already, or the directory is damaged: nothing was written."""


@dataclass(frozen=True)
class Imported:
    """What was moved: rows of each table. `was_done`: by an earlier call. `kept` is where store.db is now.

    `objects_left`: objects that stay out of the cluster's reach, at `location`.
    """

    kept: Path
    rows: Mapping[str, int] = field(default_factory=dict)
    was_done: bool = False
    objects_left: int = 0
    location: str = ""


@dataclass(frozen=True)
class _Moved:
    """What the transaction says; kept with it. `followed` is where the files go on following, `snapshots` new ids."""

    rows: Mapping[str, int]
    snapshots: Mapping[int, int]
    followed: int
    objects_left: int
    location: str


def bring(root: Path, settings: Settings) -> Imported:
    """Move the ledgers of `root` into the cluster. No store may use it meanwhile; the cluster's nodes may serve.

    Raises CannotCheck where that cannot be done, or not now; Refused where nothing was written, nor will be.
    """
    directory = DataDirectory(root)
    if (done := _done_before(directory)) is not None:
        return done
    directory = database.find(root)
    try:
        with alone(directory), opened(settings, migrates=True) as postgres:
            cluster_id = postgres.read_blocking(nodes.cluster_id)
            import_id = _begun(directory, cluster_id)
            moved = postgres.read_blocking(_found, import_id)
            if moved is None:
                try:
                    _refuse_damaged(directory)
                    moved = postgres.commit_blocking(_move, directory.database, import_id)
                except Refused:
                    _end(directory)
                    raise
            kept = _become_node(directory, cluster_id, moved)
    except (OSError, sqlite3.Error) as error:
        raise CannotCheck(f"cannot import {directory.root}: {error}; run this again") from error
    return Imported(kept, moved.rows, False, moved.objects_left, moved.location)


def _done_before(directory: DataDirectory) -> Imported | None:
    """The import that was done; None if there is something to import."""
    if directory.database.exists() or not (kept := sorted(directory.root.glob(f"{_IMPORTED}*"))):
        return None
    with alone(directory):
        _end(directory)  # the end of one that was interrupted
    return Imported(kept[-1], was_done=True)


def _begun(directory: DataDirectory, cluster_id: str) -> str:
    """The id of this import, or of one that was interrupted. Raises CannotCheck where that was into another cluster."""
    path = directory.root / IMPORTING
    with suppress(FileNotFoundError):
        try:
            found = json.loads(path.read_bytes())
            before, import_id = str(found["cluster_id"]), str(found["import_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CannotCheck(f"{path} cannot be read ({error}); delete it if nothing was ever imported") from error
        if before != cluster_id:
            raise CannotCheck(f"an import into the cluster {before} was begun, and this one is {cluster_id}; end that")
        return import_id
    import_id, new = uuid.uuid4().hex, path.with_name(f"{IMPORTING}-new")
    new.unlink(missing_ok=True)
    with open_private(new) as file:
        file.write(json.dumps({"cluster_id": cluster_id, "import_id": import_id}).encode())
        file.flush()
        sync(file.fileno())
    new.replace(path)
    sync_directory(directory.root)
    return import_id


def _end(directory: DataDirectory) -> None:
    (directory.root / IMPORTING).unlink(missing_ok=True)
    sync_directory(directory.root)


def _refuse_damaged(directory: DataDirectory) -> None:
    """Raise Refused unless all ledgers hold together."""
    findings: list[Finding] = []
    try:
        with reading(directory.database, is_ours=True) as store:
            if database.check(store, directory.database, findings.append):
                ledgers.check(store, Tree(store), findings.append)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise Refused(f"{directory.database} is damaged ({error}); nothing was imported") from error
    if findings:
        first = f"{findings[0].where}: {findings[0].problem}"
        raise Refused(
            f"{directory.database} has {len(findings)} faults ({first}); nothing was imported; run: agentmem store"
            f" check {directory.root}"
        )


def _move(ledger: Connection, path: Path, import_id: str) -> _Moved:
    """The transaction; it knows its own repetition. Raises Refused."""
    with reading(path, is_ours=True) as store:
        return _move_all(ledger, store, import_id)


def _move_all(ledger: Connection, store: sqlite3.Connection, import_id: str) -> _Moved:
    if (moved := _found(ledger, import_id)) is not None:
        return moved
    _stand_aside(ledger, import_id)
    if conflicts := _conflicts(ledger, store):
        # A process that was killed may have left its COMMIT under way: what it brought is seen with its id.
        if (moved := _found(ledger, import_id)) is not None:
            return moved
        more = f" and {len(conflicts) - _NAMED} more" if len(conflicts) > _NAMED else ""
        there = "; ".join(conflicts[:_NAMED])
        raise Refused(f"the cluster has these already: {there}{more}; nothing was imported")
    followed = kv_changes.last(ledger)
    left, location = _objects_left(store)
    try:
        copied = rows.copy(store, ledger, renumber=True, namespace=None, later=_later(ledger, store))
    except CannotCheck as error:
        raise Refused(f"{error}; nothing was imported") from error
    moved = _Moved(copied.rows, copied.ids["snapshots"], followed, left, location)
    said = {"rows": moved.rows, "followed": followed, "objects_left": left, "location": location}
    ledger.execute(
        "INSERT INTO imports (import_id, said, snapshots) VALUES (?, ?, ?)",
        (import_id, json.dumps(said), _packed(moved.snapshots)),
    )
    return moved


def _stand_aside(ledger: Connection, import_id: str) -> None:
    """Let nodes go on while this runs, for as long as it takes.

    They follow changes of KV up to the oldest transaction that could still write some, and this writes none; and it
    counts bytes of namespaces in rows of its own, for it holds them to its end.
    """
    number = int(import_id[:4], 16)
    ledger.execute("SELECT pg_advisory_xact_lock_shared(?::bigint::int, ?::bigint::int)", (BRINGING, number))
    ledger.execute("SELECT set_config('agentmem.shard', ?, true)", (str(_SHARDS + number),))


def _found(ledger: Connection, import_id: str) -> _Moved | None:
    """What an earlier attempt has done; None if none has."""
    row = ledger.execute("SELECT said, snapshots FROM imports WHERE import_id = ?", (import_id,)).fetchone()
    return None if row is None else _Moved(snapshots=_unpacked(row[1]), **json.loads(row[0]))


def _conflicts(ledger: Connection, store: sqlite3.Connection) -> list[str]:
    """What is in both, in words."""
    agents = store.execute("SELECT uid, namespace, agent_id, model_id FROM agents ORDER BY 2, 3, 4").fetchall()
    found = []
    for some in pieces(agents):
        uids = [uid for uid, *_ in some]
        for (uid,) in ledger.execute(f"SELECT uid FROM agents WHERE {among('uid', uids)}", uids):
            found.append(f"the agent with uid {uid}")
    keys: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for _, namespace, *rest in agents:
        keys[namespace].append(tuple(rest))
    for namespace, wanted in keys.items():
        for some in pieces(wanted):
            ids = sorted({agent_id for agent_id, _ in some})
            statement = f"SELECT agent_id, model_id FROM agents WHERE namespace = ? AND {among('agent_id', ids)}"
            there = set(map(tuple, ledger.execute(statement, (namespace, *ids))))
            found += [f"agent {'/'.join((namespace, *key))}" for key in some if key in there]
    runs: defaultdict[str, list[str]] = defaultdict(list)
    for namespace, run in store.execute("SELECT namespace, workflow_id FROM workflow_records ORDER BY 1, 2"):
        runs[namespace].append(run)
    for namespace, names in runs.items():
        for part in pieces(names):
            statement = f"SELECT workflow_id FROM workflow_records WHERE namespace = ? AND {among('workflow_id', part)}"
            found += [f"run {namespace}/{name}" for (name,) in ledger.execute(statement, (namespace, *part))]
    return found


def _later(ledger: Connection, store: sqlite3.Connection) -> int:
    """By how much the cluster's time is ahead of the store's: agents were idle for as long there as here."""
    (here,) = store.execute(
        "SELECT max(coalesce((SELECT max(used) FROM agents), 0), coalesce((SELECT time FROM clock), 0))"
    ).fetchone()
    return nodes.time(ledger) - int(here) if here else 0


def _objects_left(store: sqlite3.Connection) -> tuple[int, str]:
    """How many objects the store has in its object store, and where; 0 and "" for none. They are of no use there."""
    (count,) = store.execute("SELECT count(*) FROM objects").fetchone()
    place = store.execute("SELECT location FROM remote_place").fetchone()
    return (int(count), str(place[0])) if count and place else (0, "")


def _become_node(directory: DataDirectory, cluster_id: str, moved: _Moved) -> Path:
    """Make the directory a node's; where its store.db is now."""
    if not warm_index.unusable(directory):  # otherwise the node begins without files
        try:
            with reading(directory.database, is_ours=True) as store, writing(directory.warm_database) as warm:
                dropped = _follow(store, warm, cluster_id, moved)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:  # damaged, behind what was looked at: its files are not worth a half import
            warm_database.discard(directory.warm_database)
        else:
            directory.remove(dropped.files)
            directory.remove_quarantined(dropped.quarantined)
    with closing(sqlite3.connect(directory.database, isolation_level=None)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    kept = directory.root / f"{_IMPORTED}{time.time_ns()}"
    directory.database.rename(kept)
    sync_directory(directory.root)
    _end(directory)
    return kept


def _follow(store: sqlite3.Connection, warm: sqlite3.Connection, cluster_id: str, moved: _Moved) -> Dropped:
    """Let warm.db be of the cluster's ledgers, once; the files to unlink."""
    if warm.execute("SELECT ledgers FROM directory").fetchone() == (cluster_id,):
        return Dropped()
    dropped = holding.follow(warm, kv_changes.after(store, holding.followed(warm)))
    held = warm.execute("SELECT uid, snapshot, kind, chain_hash FROM held WHERE snapshot != 0").fetchall()
    warm.execute("DELETE FROM held WHERE snapshot != 0")
    warm.executemany(
        "INSERT INTO held (uid, snapshot, kind, chain_hash) VALUES (?, ?, ?, ?)",
        [(uid, moved.snapshots[number], *name) for uid, number, *name in held if number in moved.snapshots],
    )
    warm.execute("UPDATE followed SET change = ?", (moved.followed,))
    warm.execute("UPDATE directory SET ledgers = ?", (cluster_id,))
    return dropped


def _packed(ids: Mapping[int, int]) -> bytes:
    return b"".join(struct.pack("<qq", *pair) for pair in ids.items())


def _unpacked(data: bytes) -> dict[int, int]:
    return dict(struct.iter_unpack("<qq", data))
