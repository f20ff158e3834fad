"""Agents whose rows are lost, by the table's indexes, which have pages of their own.

They know an agent's key, its uid and its head; what else a row counts follows from the head's segment. Its label, its
pin and its times to live are lost. A ledger that was cut ends with the turn that it was cut in.
"""

import sqlite3
import time
from typing import Any

from agentmem.keys import AgentKey
from cache_service.offline.salvage import Row

_KEYS = "SELECT rowid, namespace, agent_id, model_id FROM agents INDEXED BY sqlite_autoindex_agents_2"
_UIDS = "SELECT rowid, uid FROM agents INDEXED BY sqlite_autoindex_agents_1"
_HEADS = "SELECT rowid, head_segment FROM agents INDEXED BY agents_by_head"


def find(source: sqlite3.Connection, target: sqlite3.Connection) -> tuple[list[AgentKey], list[AgentKey]]:
    """Make rows in `target` of what the indexes of `source` know: the agents made again, and those that cannot be.

    Segments, turns and snapshots have been copied. A version beyond all known ones is given: the last one is not known.
    """
    there = {AgentKey(*row) for row in target.execute("SELECT namespace, agent_id, model_id FROM agents")}
    uids, heads = _by_row(source, _UIDS), _by_row(source, _HEADS)
    made, gone = [], []
    for row, values in _by_row(source, _KEYS).items():
        key = AgentKey(*values)
        if key in there:
            continue
        if row in uids and row in heads and _make(target, key, uids[row][0], heads[row][0]):
            made.append(key)
        else:
            gone.append(key)
    return made, gone


def _by_row(source: sqlite3.Connection, statement: str) -> dict[int, Row]:
    """What an index holds, by row id, up to the first page of it that is damaged, from both ends."""
    found: dict[int, Row] = {}
    for order in ("ASC", "DESC"):
        try:
            for row, *values in source.execute(f"{statement} ORDER BY 2 {order}"):
                found[row] = tuple(values)
            break
        except sqlite3.DatabaseError:
            continue
    return found


def _make(target: sqlite3.Connection, key: AgentKey, uid: Any, head: Any) -> bool:
    """Add the agent's row; whether that is possible."""
    tokens, text_bytes, turns = target.execute(
        "SELECT parent_tokens + tokens, parent_bytes + text_bytes, turns FROM segments WHERE id = ?", (head,)
    ).fetchone() or (0, 0, 0)
    newest = target.execute(
        "SELECT max(version) FROM (SELECT version FROM turns WHERE uid = :uid"
        " UNION ALL SELECT version FROM snapshots WHERE uid = :uid)",
        {"uid": uid},
    ).fetchone()[0]
    messages, message_hash = target.execute(
        "SELECT messages, message_hash FROM turns WHERE uid = ? AND segment = ?", (uid, head)
    ).fetchone() or (0, b"")
    now = time.time_ns()
    try:
        target.execute(
            "INSERT INTO agents (uid, namespace, agent_id, model_id, version, head_segment, tokens, text_bytes, turns,"
            " label, messages, message_hash, created, updated, used)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?)",
            (uid, *key, (newest or 0) + 1, head, tokens, text_bytes, turns, messages, message_hash, now, now, now),
        )
    except sqlite3.Error:
        return False
    return True
