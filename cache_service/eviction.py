"""Dropping KV to make room. Functions of a connection, inside the caller's transaction.

Rows go here, files after the transaction. The ledger is never touched: what goes costs time and nothing else. What an
agent loses this way is remembered until it is there again, so that a worker can say why it found nothing.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentmem.hints import TurnHints
from agentmem.keys import AgentKey
from cache_service import references
from cache_service.files import FileName, Kind

ALL_REFS = (
    "SELECT uid, kind, chain_hash FROM refs"
    " UNION ALL SELECT s.uid, r.kind, r.chain_hash FROM snapshot_refs AS r JOIN snapshots AS s ON s.id = r.snapshot"
)
"""What agents and their snapshots refer to."""

WITH_KV = "SELECT uid FROM refs UNION SELECT s.uid FROM snapshot_refs AS r JOIN snapshots AS s ON s.id = r.snapshot"
"""Agents that have KV on disk, their own or a snapshot's."""


@dataclass
class Dropped:
    """What an eviction leaves to do: files to unlink; and what it has done: agents that lost KV, and the bytes."""

    files: list[FileName] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    agents: int = 0
    freed_bytes: int = 0


def evict(
    connection: sqlite3.Connection, goal: int, quarantined: Mapping[str, int], spare: str | None, hints: TurnHints
) -> Dropped:
    """Drop at least `goal` bytes, or all that may go: what serves nobody, then agents by hint and last use.

    `quarantined` are the sizes of what is in quarantine; `spare` is an agent that stays. Pinned agents stay, and so
    does a file that anybody else refers to.
    """
    dropped = Dropped()
    _drop_unowned(connection, goal, dropped)
    for (file,) in connection.execute("SELECT file FROM quarantined ORDER BY rowid").fetchall():
        if dropped.freed_bytes >= goal:
            break
        connection.execute("DELETE FROM quarantined WHERE file = ?", (file,))
        dropped.quarantined.append(file)
        dropped.freed_bytes += quarantined.get(file, 0)
    for uid in _candidates(connection, spare, hints) if dropped.freed_bytes < goal else ():
        drop_agent(connection, uid, dropped)
        if dropped.freed_bytes >= goal:
            break
    return dropped


def drop_agent(connection: sqlite3.Connection, uid: str, dropped: Dropped) -> None:
    """Take an agent's and its snapshots' references away, and the files that nobody else has; added to `dropped`."""
    names = references.of(connection, uid) | references.of_snapshots(connection, uid)
    (namespace,) = connection.execute("SELECT namespace FROM agents WHERE uid = ?", (uid,)).fetchone()
    connection.execute("DELETE FROM refs WHERE uid = ?", (uid,))
    connection.execute("DELETE FROM snapshot_refs WHERE snapshot IN (SELECT id FROM snapshots WHERE uid = ?)", (uid,))
    files, size = references.drop_unreferenced(connection, namespace, names)
    connection.executemany(
        "INSERT OR IGNORE INTO evicted (uid, kind, chain_hash) VALUES (?, ?, ?)", [(uid, *name) for name in files]
    )
    dropped.files += files
    dropped.freed_bytes += size
    dropped.agents += bool(names)


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


def held_bytes(connection: sqlite3.Connection, spare: str | None = None) -> int:
    """Bytes of the files that pinned agents and `spare` refer to."""
    (size,) = connection.execute(
        f"SELECT coalesce(sum(size_bytes), 0) FROM files AS f WHERE EXISTS (SELECT 1 FROM ({ALL_REFS}) AS r"
        " JOIN agents AS a USING (uid)"
        " WHERE r.kind = f.kind AND r.chain_hash = f.chain_hash AND (a.pinned OR a.uid IS ?))",
        (spare,),
    ).fetchone()
    return int(size)


def last_used(connection: sqlite3.Connection) -> str | None:
    """The agent that was used last."""
    row = connection.execute("SELECT uid FROM agents ORDER BY used DESC, uid LIMIT 1").fetchone()
    return None if row is None else str(row[0])


def _candidates(connection: sqlite3.Connection, spare: str | None, hints: TurnHints) -> list[str]:
    """Agents that may lose their KV, who should go first in front."""
    rows = connection.execute(
        "SELECT namespace, agent_id, model_id, uid FROM agents"
        f" WHERE NOT pinned AND uid IS NOT ? AND uid IN ({WITH_KV}) ORDER BY used, uid",
        (spare,),
    ).fetchall()
    return [uid for *_, uid in sorted(rows, key=lambda row: hints.rank(AgentKey(*row[:3])))]


def _drop_unowned(connection: sqlite3.Connection, goal: int, dropped: Dropped) -> None:
    rows = connection.execute(
        f"SELECT namespace, kind, chain_hash FROM files AS f WHERE NOT EXISTS (SELECT 1 FROM ({ALL_REFS}) AS r"
        " WHERE r.kind = f.kind AND r.chain_hash = f.chain_hash) ORDER BY used"
    ).fetchall()
    for namespace, kind, chain_hash in rows:
        if dropped.freed_bytes >= goal:
            return
        files, size = references.drop_unreferenced(connection, namespace, [FileName(Kind(kind), chain_hash)])
        dropped.files += files
        dropped.freed_bytes += size
