"""The newest intact state of each agent, if segments are lost."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentmem.validation import AgentKey
from cache_service.damage import LedgerDamaged
from cache_service.ledger import segments, versions
from cache_service.ledger.segments import EMPTY, Head
from cache_service.offline import ledgers
from cache_service.offline.ledgers import Holder
from cache_service.offline.transfer import Link


@dataclass(frozen=True)
class RecoveredAgent:
    key: AgentKey
    state: str
    """ "whole", "in part" or "gone"."""
    tokens: int = 0
    turns: int = 0
    had_tokens: int | None = None
    had_turns: int | None = None
    lost_snapshots: tuple[str, ...] = ()


def keep_newest(connection: sqlite3.Connection, links: Mapping[int, Link]) -> list[RecoveredAgent]:
    """Give every agent its newest intact state, and drop the rest. Foreign keys are not enforced.

    Copied segments are intact; `links` are the places of others.
    """
    good, known = set[int](), dict(links)
    for number, parent, parent_tokens in connection.execute(
        "SELECT id, parent_id, parent_tokens FROM segments ORDER BY id"
    ):
        known[number] = Link(parent, parent_tokens)
        if parent is None or parent in good:
            good.add(number)
    lost: defaultdict[str, list[str]] = defaultdict(list)
    holders = ledgers.holders(connection)
    for snapshot in holders:
        if snapshot.snapshot is not None and ledgers.head_problem(connection, snapshot):
            connection.execute("DELETE FROM snapshots WHERE id = ?", (snapshot.snapshot,))
            lost[snapshot.uid].append(snapshot.name)
    # Retries have to compute turns of lost segments, not to get an answer as durable.
    rows = connection.execute("SELECT rowid, segment FROM turns WHERE segment IS NOT NULL").fetchall()
    lost_turns = [(row,) for row, segment in rows if segment not in good]
    connection.executemany("DELETE FROM turns WHERE rowid = ?", lost_turns)
    kept = []
    for agent in holders:
        if agent.snapshot is None:
            head = _keep_newest_of(connection, agent, known)
            state = "gone" if head is None else "whole" if head.tokens == agent.head.tokens else "in part"
            _, tokens, _, turns = head or EMPTY
            had = agent.head.tokens, agent.head.turns
            kept.append(RecoveredAgent(agent.key, state, tokens, turns, *had, tuple(lost[agent.uid])))
    for table in ("turns", "snapshots"):
        connection.execute(f"DELETE FROM {table} WHERE uid NOT IN (SELECT uid FROM agents)")
    connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in known.keys() - good])
    segments.drop_unused(connection, sorted(good, reverse=True))
    connection.execute("UPDATE turns SET segment = NULL WHERE segment NOT IN (SELECT id FROM segments)")
    return kept


def _keep_newest_of(connection: sqlite3.Connection, agent: Holder, links: Mapping[int, Link]) -> Head | None:
    """Return the new head; None if the agent had to be deleted."""
    (newest,) = connection.execute("SELECT max(version) FROM turns WHERE uid = ?", (agent.uid,)).fetchone()
    if (newest or 0) <= agent.version and not ledgers.head_problem(connection, agent):
        return agent.head
    for number, tokens in (*_beginnings(agent, links), *_earlier(connection, agent)):
        head = _head_at(connection, agent.key.namespace, number, tokens)
        if head is not None and head.tokens > 0:
            version = max(agent.version, newest or 0) + 1
            connection.execute(
                "UPDATE agents SET version = ?, revision = ?, head_segment = ?, tokens = ?, text_bytes = ?, turns = ?,"
                " messages = 0, message_hash = x'' WHERE uid = ?",
                (version, versions.revision(), *head, agent.uid),
            )
            return head
    connection.execute("DELETE FROM agents WHERE uid = ?", (agent.uid,))
    return None


def _head_at(connection: sqlite3.Connection, namespace: str, number: int, tokens: int) -> Head | None:
    try:
        pieces = segments.walk(connection, Head(number, tokens, 0, 0), "")
    except LedgerDamaged:
        return None
    return pieces[-1].end() if {piece.namespace for piece in pieces} == {namespace} else None


def _beginnings(agent: Holder, links: Mapping[int, Link]) -> Iterator[tuple[int, int]]:
    """Yield segments, newest first, with the positions up to which they count."""
    number, tokens, *_ = agent.head
    while number is not None:
        yield number, tokens
        link = links.get(number)
        if link is None or (link.parent is not None and link.parent >= number):
            return
        number, tokens = link


def _earlier(connection: sqlite3.Connection, agent: Holder) -> list[tuple[int, int]]:
    """Return the ends of remaining turns and snapshots, newest first."""
    rows = connection.execute(
        "SELECT t.version, s.id, s.parent_tokens + s.tokens FROM turns AS t JOIN segments AS s ON s.id = t.segment"
        " WHERE t.uid = :uid UNION ALL SELECT version, head_segment, tokens FROM snapshots WHERE uid = :uid"
        " ORDER BY 1 DESC",
        {"uid": agent.uid},
    )
    return [(segment, tokens) for _, segment, tokens in rows.fetchall()]
