"""Dropping KV to make room: who goes first, by last use and by what agents are given to live.

Functions of a connection, inside the caller's transaction; rows go here, files after the transaction. The ledger is
never touched: what is dropped costs time and nothing else, and is remembered until it is there again, so that a worker
can say why it found nothing. Times are nanoseconds.

When agents and files were last used is kept in memory and written with the next transaction, so that reads cost no
fsync. A crash or a failed commit loses the notes since the last commit: eviction may then misjudge by one turn.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from itertools import chain

from agentmem.hints import TurnHints
from agentmem.identity import FileName
from agentmem.validation import AgentKey
from cache_service.files import references
from cache_service.files.references import HELD, Dropped
from cache_service.ledger import agents

HAS_ANY_KV = f"EXISTS (SELECT 1 FROM ({HELD}) AS h WHERE h.uid = agents.uid)"
"""Whether an agent has KV, its own or a snapshot's, on disk or in the object store."""
HAS_KV = f"EXISTS (SELECT 1 FROM ({HELD}) AS h WHERE h.uid = agents.uid AND h.warm)"
"""Likewise, on disk."""


def evict(
    connection: sqlite3.Connection, goal: int, protected: str | None, hints: TurnHints, namespace: str | None = None
) -> Dropped:
    """Drop at least `goal` bytes, or all that may go: files that no state refers to, then agents by hint and last use.

    `protected` is an agent that stays. Pinned agents stay, and so does a file that anybody else refers to. With a
    `namespace`, nothing of any other goes.
    """
    dropped, idle = Dropped(), _idle(connection, protected, hints, namespace)
    going = chain(_unowned(connection, namespace), _quarantined(connection, namespace), idle)
    while dropped.freed_bytes < goal and (each := next(going, None)):
        dropped.add(each)
    return dropped


def drop_agent(connection: sqlite3.Connection, uid: str, *, objects: bool = False) -> Dropped:
    """Take an agent's and its snapshots' files away that no other agent has.

    What is in the object store they keep there, and can have back, unless `objects` says that it goes, too.
    """
    names = references.held(connection, uid)
    (namespace,) = connection.execute("SELECT namespace FROM agents WHERE uid = ?", (uid,)).fetchone()
    for table, condition in (
        ("refs", "uid = ?"),
        ("snapshot_refs", "snapshot IN (SELECT id FROM snapshots WHERE uid = ?)"),
    ):
        if not objects:
            connection.execute(
                f"UPDATE {table} AS r SET warm = 0 WHERE {condition} AND EXISTS"
                " (SELECT 1 FROM objects AS o WHERE o.kind = r.kind AND o.chain_hash = r.chain_hash AND o.present)",
                (uid,),
            )
        connection.execute(f"DELETE FROM {table} WHERE {condition} AND (warm OR ?)", (uid, objects))
    files, size = references.drop_unreferenced(connection, namespace, names)
    connection.executemany(
        "INSERT OR IGNORE INTO evicted (uid, kind, chain_hash) SELECT :uid, :kind, :chain_hash WHERE NOT EXISTS"
        " (SELECT 1 FROM objects AS o WHERE o.kind = :kind AND o.chain_hash = :chain_hash AND o.present)",
        [{"uid": uid, "kind": name.kind, "chain_hash": name.chain_hash} for name in files],
    )
    return Dropped(files, agents=int(bool(names)), freed_bytes=size)


def evicted(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> list[FileName]:
    """Those of `names` that some agent of the namespace has lost to an eviction."""
    return [
        name
        for name in names
        if connection.execute(
            "SELECT 1 FROM evicted JOIN agents USING (uid) WHERE kind = ? AND chain_hash = ? AND namespace = ?",
            (*name, namespace),
        ).fetchone()
    ]


def forget(connection: sqlite3.Connection, uid: str, names: Iterable[FileName]) -> None:
    """Remember no longer that these were evicted, for they are there; and nothing of what `uid` lost before."""
    connection.executemany("DELETE FROM evicted WHERE kind = ? AND chain_hash = ?", names)
    connection.execute(
        "DELETE FROM evicted WHERE uid = ? AND NOT EXISTS (SELECT 1 FROM refs WHERE refs.uid = evicted.uid"
        " AND refs.kind = evicted.kind AND refs.chain_hash = evicted.chain_hash)",
        (uid,),
    )


def held_bytes(connection: sqlite3.Connection, protected: str | None = None, namespace: str | None = None) -> int:
    """Bytes of the files that pinned agents (of the namespace, if one is given) and `protected` refer to."""
    within, values = _within(namespace)
    (size,) = connection.execute(
        f"WITH holders (uid) AS MATERIALIZED (SELECT uid FROM agents WHERE {within} AND pinned UNION SELECT ?)"
        " SELECT coalesce(sum(f.size_bytes), 0) FROM (SELECT r.kind, r.chain_hash FROM holders AS h"
        " CROSS JOIN refs AS r USING (uid) WHERE r.warm"
        " UNION SELECT r.kind, r.chain_hash FROM holders AS h CROSS JOIN snapshots AS s USING (uid)"
        " CROSS JOIN snapshot_refs AS r ON r.snapshot = s.id WHERE r.warm) AS held"
        " CROSS JOIN files AS f USING (kind, chain_hash)",
        (*values, protected),
    ).fetchone()
    return int(size)


def last_used(connection: sqlite3.Connection, hints: TurnHints, namespace: str | None = None) -> str | None:
    """The agent that was used last, of the namespace if one is given; None if it will not speak again."""
    within, values = _within(namespace)
    row = connection.execute(
        f"SELECT namespace, agent_id, model_id, uid FROM agents WHERE {within} ORDER BY used DESC, uid LIMIT 1", values
    ).fetchone()
    return None if row is None or hints.is_over(AgentKey(*row[:3])) else str(row[3])


def _idle(
    connection: sqlite3.Connection, protected: str | None, hints: TurnHints, namespace: str | None
) -> Iterator[Dropped]:
    """Drop the KV of agents that may lose it, one after the other; who should go first in front."""
    within, values = _within(namespace)
    rows = connection.execute(
        "SELECT namespace, agent_id, model_id, uid FROM agents"
        f" WHERE {within} AND NOT pinned AND uid IS NOT ? AND {HAS_KV} ORDER BY used, uid",
        (*values, protected),
    ).fetchall()
    uids = {AgentKey(*row[:3]): str(row[3]) for row in rows}
    yield from (drop_agent(connection, uids[key]) for key in hints.order(uids))


def _unowned(connection: sqlite3.Connection, namespace: str | None) -> Iterator[Dropped]:
    """Drop files that no state refers to, one after the other."""
    within, values = _within(namespace)
    rows = connection.execute(
        f"SELECT namespace, kind, chain_hash FROM files WHERE {within}"
        " AND NOT EXISTS (SELECT 1 FROM refs AS r WHERE r.kind = files.kind AND r.chain_hash = files.chain_hash"
        " AND r.warm) AND NOT EXISTS (SELECT 1 FROM snapshot_refs AS r"
        " WHERE r.kind = files.kind AND r.chain_hash = files.chain_hash AND r.warm) ORDER BY used",
        values,
    ).fetchall()
    for owner, *name in rows:
        files, size = references.drop_unreferenced(connection, owner, [references.named(*name)])
        yield Dropped(files, freed_bytes=size)


def _quarantined(connection: sqlite3.Connection, namespace: str | None) -> Iterator[Dropped]:
    """Drop files in quarantine, one after the other."""
    within, values = _within(namespace)
    rows = connection.execute(f"SELECT file, size_bytes FROM quarantined WHERE {within} ORDER BY rowid", values)
    for file, size in rows.fetchall():
        references.forget_quarantined(connection, [file])
        yield Dropped(quarantined=[file], freed_bytes=size)


def _within(namespace: str | None) -> tuple[str, tuple[str, ...]]:
    return ("true", ()) if namespace is None else ("namespace = ?", (namespace,))


def any_limited(connection: sqlite3.Connection) -> bool:
    """Whether any agent has a time to end at."""
    row = connection.execute("SELECT 1 FROM agents WHERE ttl IS NOT NULL OR delete_after IS NOT NULL LIMIT 1")
    return row.fetchone() is not None


def expire(connection: sqlite3.Connection, now: int) -> tuple[Dropped, Dropped]:
    """End what is over: the KV that a TTL drops, and agents that are erased.

    A pin keeps KV from those who need room, not from the agent's own TTL.
    """
    erased, dropped = Dropped(), Dropped()
    over = "SELECT namespace, agent_id, model_id FROM agents WHERE used + delete_after <= ?"
    for key in connection.execute(over, (now,)).fetchall():
        erased.add(agents.delete(connection, AgentKey(*key)))
    idle = connection.execute(f"SELECT uid FROM agents WHERE used + ttl <= ? AND {HAS_ANY_KV}", (now,)).fetchall()
    for (uid,) in idle:
        dropped.add(drop_agent(connection, uid, objects=True))
    return dropped, erased


class LastUse:
    """Notes of use. `note` on any thread; `flush` is the database's before_commit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: dict[str, int] = {}
        self._files: dict[FileName, int] = {}

    def note(self, uid: str, names: Iterable[FileName], now: int) -> None:
        """An agent (or "", for none) and files were used at `now`, nanoseconds since 1970."""
        with self._lock:
            if uid:
                self._agents[uid] = now
            self._files.update((name, now) for name in names)

    def flush(self, connection: sqlite3.Connection) -> None:
        """Write all notes and forget them."""
        with self._lock:
            agents, self._agents = self._agents, {}
            files, self._files = self._files, {}
        connection.executemany(
            "UPDATE agents SET used = max(used, ?) WHERE uid = ?", [(now, uid) for uid, now in agents.items()]
        )
        connection.executemany(
            "UPDATE files SET used = max(used, ?) WHERE kind = ? AND chain_hash = ?",
            [(now, *name) for name, now in files.items()],
        )
