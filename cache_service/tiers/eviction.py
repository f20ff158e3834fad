"""Dropping KV to make room: who goes first, by last use and by time to live.

Functions of a connection: to warm.db, or to store.db where they say "of the ledger". Times are nanoseconds.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from agentmem.kv.blockfile import FileName
from agentmem.kv.hints import TurnHints
from agentmem.validation import AgentKey
from cache_service.connection import Connection, among, differences, pieces, when_committed
from cache_service.files import holding, references
from cache_service.files.references import Dropped
from cache_service.ledger import agents, object_references


def idle_order(
    connection: Connection, uids: Sequence[str], protected: str | None, namespace: str | None = None
) -> dict[AgentKey, str]:
    """Return those that are not pinned, but for `protected`, the longest unused first. Of the ledger."""
    within, values = _within(namespace)
    rows: list[tuple[int, str, AgentKey]] = []
    for some in pieces([uid for uid in uids if uid != protected]):
        found = connection.execute(
            "SELECT used, uid, namespace, agent_id, model_id FROM agents"
            f" WHERE {among('uid', some)} AND pinned = 0 AND {within}",
            (*some, *values),
        )
        rows += ((used, uid, AgentKey(*key)) for used, uid, *key in found)
    return {key: uid for _, uid, key in sorted(rows)}


def evict(
    connection: sqlite3.Connection,
    goal: int,
    idle: dict[AgentKey, str],
    hints: TurnHints,
    namespace: str | None = None,
) -> Dropped:
    """Drop `goal` bytes, or all that may go: what nobody holds, then `idle` agents by hint and last use."""
    dropped = Dropped()
    agents = (drop_agent(connection, idle[key], key.namespace) for key in hints.order(idle))
    going = chain(_unowned(connection, namespace), agents)
    while dropped.freed_bytes < goal and (each := next(going, None)):
        dropped.add(each)
    return dropped


def drop_agent(connection: sqlite3.Connection, uid: str, namespace: str) -> Dropped:
    """Drop what no other agent has; mark it, so that a worker can say why."""
    names, files, size = holding.drop_all(connection, uid, namespace)
    if names:
        marked = "INSERT INTO published (uid, version, evicted) VALUES (?, 0, 1)"  # it may have published nothing yet
        connection.execute(f"{marked} ON CONFLICT (uid) DO UPDATE SET evicted = 1", (uid,))
    return Dropped(files, agents=int(bool(names)), freed_bytes=size)


def pinned(connection: Connection, protected: str | None = None, namespace: str | None = None) -> set[str]:
    """Read the ledger."""
    within, values = _within(namespace)
    rows = connection.execute(f"SELECT uid FROM agents WHERE {within} AND pinned != 0", values)
    return {str(uid) for (uid,) in rows} | ({protected} if protected else set())


def last_used(connection: Connection, hints: TurnHints, namespace: str | None = None) -> str | None:
    """Return None if it will not speak again. Of the ledger."""
    within, values = _within(namespace)
    row = connection.execute(
        f"SELECT namespace, agent_id, model_id, uid FROM agents WHERE {within} ORDER BY used DESC, uid LIMIT 1", values
    ).fetchone()
    return None if row is None or hints.is_over(AgentKey(*row[:3])) else str(row[3])


def _unowned(connection: sqlite3.Connection, namespace: str | None) -> Iterator[Dropped]:
    within, values = _within(namespace)
    rows = connection.execute(
        f"SELECT namespace, kind, chain_hash FROM files WHERE {within} AND NOT EXISTS"
        " (SELECT 1 FROM held AS h WHERE h.kind = files.kind AND h.chain_hash = files.chain_hash) ORDER BY used",
        values,
    ).fetchall()
    for owner, *name in rows:
        files, size = holding.drop_unheld(connection, owner, [references.named(*name)])
        yield Dropped(files, freed_bytes=size)


def _within(namespace: str | None) -> tuple[str, tuple[str, ...]]:
    return ("true", ()) if namespace is None else ("namespace = ?", (namespace,))


def any_limited(connection: Connection) -> bool:
    """Read the ledger."""
    row = connection.execute("SELECT 1 FROM agents WHERE ttl IS NOT NULL OR delete_after IS NOT NULL LIMIT 1")
    return row.fetchone() is not None


class Expired(NamedTuple):
    """How many agents were erased; those whose TTL is over, with namespaces; and who let go of objects."""

    erased: int
    idle: dict[str, str]
    had_objects: set[str]


def expire(connection: Connection, now: int, uids: Sequence[str]) -> Expired:
    """Erase agents, and let go of objects. Of the ledger. `uids` have files here."""
    erased = 0
    over = "SELECT namespace, agent_id, model_id FROM agents WHERE used + delete_after <= ? ORDER BY uid"
    # Looked at again where another node holds the lock: its turn keeps the agent.
    for key in connection.execute(f"{over}{differences(connection).for_change}", (now,)).fetchall():
        erased += agents.delete(connection, AgentKey(*key))
    idle = dict[str, str]()
    for some in pieces(uids):
        found = f"SELECT uid, namespace FROM agents WHERE {among('uid', some)} AND used + ttl <= ?"
        idle.update(connection.execute(found, (*some, now)).fetchall())
    rows = connection.execute(
        "SELECT uid FROM agents AS a WHERE used + ttl <= ?"
        " AND EXISTS (SELECT 1 FROM object_refs AS r WHERE r.uid = a.uid) ORDER BY uid",
        (now,),
    ).fetchall()
    return Expired(erased, idle, {uid for (uid,) in rows if object_references.drop(connection, uid)})


class LastUse:
    """`note` on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: dict[str, int] = {}
        self._files: dict[FileName, int] = {}

    def note(self, uid: str, names: Iterable[FileName], now: int) -> None:
        """`uid` "": no agent."""
        with self._lock:
            if uid:
                self._agents[uid] = now
            self._files.update((name, now) for name in names)

    def any_agents(self) -> bool:
        return bool(self._agents)

    def flush_agents(self, connection: Connection) -> None:
        with self._lock:
            agents = dict(self._agents)
        connection.executemany(
            "UPDATE agents SET used = ? WHERE uid = ? AND used < ?",
            [(now, uid, now) for uid, now in sorted(agents.items())],
        )

        when_committed(connection, lambda: self._forget_agents(agents))

    def _forget_agents(self, written: Mapping[str, int]) -> None:
        with self._lock:
            self._agents = {uid: used for uid, used in self._agents.items() if written.get(uid) != used}

    def flush_files(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            files, self._files = self._files, {}
        connection.executemany(
            "UPDATE files SET used = max(used, ?) WHERE kind = ? AND chain_hash = ?",
            [(now, *name) for name, now in files.items()],
        )
