"""Moves the ledgers of a stopped store's directory into a cluster.

First store.db gets another name, with which no store starts. Then one transaction brings everything over, with the id
of these ledgers, by which a repetition after a crash knows that it was done.
"""

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agentmem.durable import sync_directory
from cache_service.cluster import nodes
from cache_service.cluster.offline import rows
from cache_service.cluster.offline.server import Refused, into_one_file, opened, refuse_faults
from cache_service.cluster.postgres.adapter import BRINGING
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection, among, pieces
from cache_service.files.directory import DataDirectory
from cache_service.offline import database
from cache_service.offline.database import IMPORTING, alone, reading
from cache_service.offline.findings import CannotCheck

_IMPORTED: Final = "store.db-imported-"
_SHARDS: Final = 64
_NAMED: Final = 10


@dataclass(frozen=True)
class Imported:
    """`kept` is where store.db is now, `location` where the objects are that are left."""

    kept: Path = Path()
    rows: Mapping[str, int] = field(default_factory=dict)
    was_done: bool = False
    objects_left: int = 0
    location: str = ""


def bring(root: Path, settings: Settings) -> Imported:
    """Move the ledgers of `root` into the cluster.

    Raises CannotCheck where that cannot be done, or not now; Refused where nothing was written, nor will be.
    """
    directory = DataDirectory(root)
    importing = directory.root / IMPORTING
    if not importing.exists():
        if not directory.database.exists() and (kept := sorted(directory.root.glob(f"{_IMPORTED}*"))):
            return Imported(kept[-1], was_done=True)
        directory = database.find(root)
    try:
        with alone(directory), opened(settings, migrates=True) as postgres:
            if not importing.exists():
                refuse_faults(directory.database, str(directory.database), f"agentmem store check {directory.root}")
                into_one_file(directory.database)
                _rename(directory.database, importing)
            try:
                imported = postgres.commit_blocking(_move, importing)
            except Refused:
                _rename(importing, directory.database)
                raise
            kept_as = directory.root / f"{_IMPORTED}{time.time_ns()}"
            _rename(importing, kept_as)
    except (OSError, sqlite3.Error) as error:
        raise CannotCheck(f"cannot import {directory.root}: {error}; run this again") from error
    return replace(imported, kept=kept_as)


def _rename(path: Path, new: Path) -> None:
    path.rename(new)
    sync_directory(new.parent)


def _move(ledger: Connection, path: Path) -> Imported:
    with reading(path, is_ours=True) as store:
        return _move_all(ledger, store)


def _move_all(ledger: Connection, store: sqlite3.Connection) -> Imported:
    (ledger_id,) = store.execute("SELECT ledger_id FROM ledger").fetchone()
    if (moved := _found(ledger, ledger_id)) is not None:
        return moved
    _stand_aside(ledger, ledger_id)
    if conflicts := _conflicts(ledger, store):
        # A killed process may have left its COMMIT under way.
        if (moved := _found(ledger, ledger_id)) is not None:
            return moved
        more = f" and {len(conflicts) - _NAMED} more" if len(conflicts) > _NAMED else ""
        there = "; ".join(conflicts[:_NAMED])
        raise Refused(f"the cluster has these already: {there}{more}; nothing was imported")
    left, location = _objects_left(store)
    try:
        copied = rows.copy(store, ledger, renumber=True, namespace=None, later=_later(ledger, store))
    except CannotCheck as error:
        raise Refused(f"{error}; nothing was imported") from error
    moved = Imported(rows=copied, objects_left=left, location=location)
    said = json.dumps({**asdict(moved), "kept": ""})
    ledger.execute("INSERT INTO imports (ledger_id, said) VALUES (?, ?)", (ledger_id, said))
    return moved


def _stand_aside(ledger: Connection, ledger_id: str) -> None:
    """Let nodes go on: they wait for no changes of KV of this transaction, which counts bytes in rows of its own."""
    number = int(ledger_id[:4], 16)
    ledger.execute("SELECT pg_advisory_xact_lock_shared(?::bigint::int, ?::bigint::int)", (BRINGING, number))
    ledger.execute("SELECT set_config('agentmem.shard', ?, true)", (str(_SHARDS + number),))


def _found(ledger: Connection, ledger_id: str) -> Imported | None:
    row = ledger.execute("SELECT said FROM imports WHERE ledger_id = ?", (ledger_id,)).fetchone()
    return None if row is None else Imported(**json.loads(row[0]))


def _conflicts(ledger: Connection, store: sqlite3.Connection) -> list[str]:
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
    """Return how far the cluster's time is ahead of the store's."""
    (here,) = store.execute(
        "SELECT max(coalesce((SELECT max(used) FROM agents), 0), coalesce((SELECT time FROM clock), 0))"
    ).fetchone()
    return nodes.time(ledger) - int(here) if here else 0


def _objects_left(store: sqlite3.Connection) -> tuple[int, str]:
    (count,) = store.execute("SELECT count(*) FROM objects").fetchone()
    place = store.execute("SELECT location FROM remote_place").fetchone()
    return (int(count), str(place[0])) if count and place else (0, "")
