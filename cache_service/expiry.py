"""What agents said about their own end: how long their KV, and they themselves, outlive their last use.

Functions of a connection, inside the caller's transaction. Times are nanoseconds.
"""

import sqlite3

from agentmem.expiry import IdleTimes
from agentmem.keys import AgentKey
from cache_service import agents, eviction
from cache_service.agents import Agent
from cache_service.eviction import Dropped


def set_times(connection: sqlite3.Connection, key: AgentKey, times: IdleTimes) -> Agent:
    """Set both times, None for never; the agent. Raises NotFound."""
    return _update(connection, key, "ttl = ?, delete_after = ?", times)


def set_pinned(connection: sqlite3.Connection, key: AgentKey, pinned: bool) -> Agent:
    """Keep an agent's KV from being evicted to make room, or let it go again; the agent. Raises NotFound."""
    return _update(connection, key, "pinned = ?", (pinned,))


def any_limited(connection: sqlite3.Connection) -> bool:
    """Whether any agent has a time to end at."""
    row = connection.execute("SELECT 1 FROM agents WHERE ttl IS NOT NULL OR delete_after IS NOT NULL LIMIT 1")
    return row.fetchone() is not None


def expire(connection: sqlite3.Connection, now: int) -> tuple[Dropped, Dropped, int]:
    """End what is over: the KV dropped by a TTL, the files of agents that were erased, and how many these were.

    A pin keeps KV from those who need room, not from the agent's own TTL.
    """
    erased, deleted = Dropped(), 0
    ended = connection.execute(
        "SELECT namespace, agent_id, model_id FROM agents WHERE used + delete_after <= ?", (now,)
    ).fetchall()
    for key in ended:
        gone = agents.delete(connection, AgentKey(*key))
        deleted += gone.agents
        erased.files += gone.files
        erased.quarantined += gone.quarantined
        erased.freed_bytes += gone.freed_bytes
    dropped = Dropped()
    idle = connection.execute(
        f"SELECT uid FROM agents WHERE used + ttl <= ? AND {eviction.HAS_ANY_KV}", (now,)
    ).fetchall()
    for (uid,) in idle:
        eviction.drop_agent(connection, uid, dropped, objects=True)
    return dropped, erased, deleted


def _update(connection: sqlite3.Connection, key: AgentKey, assignments: str, values: tuple[int | None, ...]) -> Agent:
    connection.execute(
        f"UPDATE agents SET {assignments} WHERE namespace = ? AND agent_id = ? AND model_id = ?", (*values, *key)
    )
    return agents.described(connection, key)
