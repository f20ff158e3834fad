"""Which state of each agent holds together, where a part of the segments is lost: all of it, a beginning, or nothing.

Works on a new database into which rows were copied, and leaves in it what is whole and what a head stands on.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from agentmem.validation import AgentKey
from cache_service.ledger import versions
from cache_service.ledger.segments import EMPTY, Head, erase
from cache_service.offline import ledgers, tree
from cache_service.offline.findings import Finding
from cache_service.offline.transfer import Link
from cache_service.offline.tree import Holder, Segment, Tree


@dataclass(frozen=True)
class RecoveredAgent:
    """What became of one agent. Tokens and turns are those of the state that was recovered, and of the one it had."""

    key: AgentKey
    state: str
    """ "whole", "in part" or "gone"."""
    tokens: int = 0
    turns: int = 0
    had_tokens: int | None = None
    """None: not known any more."""
    had_turns: int | None = None
    lost_snapshots: tuple[str, ...] = ()
    files: int = 0
    lost_files: int = 0
    """Files that are gone or damaged; their tokens are computed again."""


def keep_newest(connection: sqlite3.Connection, links: Mapping[int, Link]) -> list[RecoveredAgent]:
    """Give every agent the newest state that holds together, and drop what does not. Foreign keys are not enforced.

    `links` are the places of segments whose content is lost. What is left is checked once more, and agents that
    contradict themselves are gone.
    """
    segments = tree.segments(connection)
    good = _good(connection, segments)
    known = {**links, **{number: Link(each.parent_id, each.parent_tokens) for number, each in segments.items()}}
    holders = tree.holders(connection)
    lost: defaultdict[str, list[str]] = defaultdict(list)
    for snapshot in holders:
        if snapshot.snapshot is not None and not _holds(connection, snapshot, segments, good):
            connection.execute("DELETE FROM snapshots WHERE id = ?", (snapshot.snapshot,))
            lost[snapshot.uid].append(snapshot.name)
    # Turns whose segment is lost: a retry has to compute them again, not to be answered as durable.
    rows = connection.execute("SELECT rowid, segment FROM turns WHERE segment IS NOT NULL").fetchall()
    lost_turns = [(row,) for row, segment in rows if segment not in good]
    connection.executemany("DELETE FROM turns WHERE rowid = ?", lost_turns)
    kept = []
    for agent in holders:
        if agent.snapshot is None:
            head = _keep_newest_of(connection, agent, segments, good, known)
            state = "gone" if head is None else "whole" if head.tokens == agent.head.tokens else "in part"
            _, tokens, _, turns = head or EMPTY
            had = agent.head.tokens, agent.head.turns
            kept.append(RecoveredAgent(agent.key, state, tokens, turns, *had, tuple(lost[agent.uid])))
    connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in segments.keys() - good])
    _drop_strangers(connection)
    gone = _drop_contradictory(connection)
    return [replace(each, state="gone", tokens=0, turns=0) if each.key in gone else each for each in kept]


def _drop_contradictory(connection: sqlite3.Connection) -> set[AgentKey]:
    """Check all ledgers, and delete the agents that contradict themselves; these agents."""
    findings: list[Finding] = []
    ledgers.check(connection, Tree(connection), findings.append)
    wrong = {name for finding in findings for name in finding.agents}
    gone = {each.uid: each.key for each in tree.holders(connection) if each.agent in wrong}
    connection.executemany("DELETE FROM agents WHERE uid = ?", [(uid,) for uid in gone])
    _drop_strangers(connection)
    return {*gone.values()}


def _good(connection: sqlite3.Connection, segments: Mapping[int, Segment]) -> set[int]:
    """Segments that hold together, as do all those that they stand on."""
    good: set[int] = set()
    for number, segment in sorted(segments.items()):
        if segment.parent_id is None or segment.parent_id in good:
            problem = ledgers.content_problem(connection, segment)
            if not (problem or ledgers.parent_problem(connection, segment, segments)):
                good.add(number)
    return good


def _holds(connection: sqlite3.Connection, holder: Holder, segments: Mapping[int, Segment], good: set[int]) -> bool:
    """Whether a head stands on what is good, and counts what that has."""
    problem = ledgers.head_problem(connection, holder.head, holder.key.namespace, segments)
    return holder.head.segment in good and not problem


def _keep_newest_of(
    connection: sqlite3.Connection,
    agent: Holder,
    segments: Mapping[int, Segment],
    good: set[int],
    links: Mapping[int, Link],
) -> Head | None:
    """The agent's head from now on; None if it had to be deleted."""
    (newest,) = connection.execute("SELECT max(version) FROM turns WHERE uid = ?", (agent.uid,)).fetchone()
    if _holds(connection, agent, segments, good) and (newest or 0) <= agent.version:
        return agent.head
    for number, tokens in (*_beginnings(agent, links), *_earlier(connection, agent)):
        place = ledgers.cut_place(connection, segments[number], tokens) if number in good else None
        if place is not None and place.tokens > 0:
            version = max(agent.version, newest or 0) + 1
            connection.execute(
                "UPDATE agents SET version = ?, revision = ?, head_segment = ?, tokens = ?, text_bytes = ?, turns = ?,"
                " messages = 0, message_hash = x'' WHERE uid = ?",
                (version, versions.revision(), *place, agent.uid),
            )
            return place
    connection.execute("DELETE FROM agents WHERE uid = ?", (agent.uid,))
    return None


def _beginnings(agent: Holder, links: Mapping[int, Link]) -> Iterator[tuple[int, int]]:
    """The segments of the agent's chain, newest first, each with the position up to which it counts."""
    number, tokens, *_ = agent.head
    while number is not None:
        yield number, tokens
        link = links.get(number)
        if link is None or (link.parent is not None and link.parent >= number):
            return
        number, tokens = link


def _earlier(connection: sqlite3.Connection, agent: Holder) -> list[tuple[int, int]]:
    """The ends of turns and snapshots that are left, newest first: where the chain of the present state is torn."""
    rows = connection.execute(
        "SELECT t.version, s.id, s.parent_tokens + s.tokens FROM turns AS t JOIN segments AS s ON s.id = t.segment"
        " WHERE t.uid = :uid UNION ALL SELECT version, head_segment, tokens FROM snapshots WHERE uid = :uid"
        " ORDER BY 1 DESC",
        {"uid": agent.uid},
    )
    return [(segment, tokens) for _, segment, tokens in rows.fetchall()]


def _drop_strangers(connection: sqlite3.Connection) -> None:
    """Drop what belongs to no agent, and what no head stands on."""
    for table in ("turns", "snapshots"):
        connection.execute(f"DELETE FROM {table} WHERE uid NOT IN (SELECT uid FROM agents)")
    while unheld := list(Tree(connection).unheld()):
        for segment, needed in unheld:
            erase(connection, segment.id, needed)
