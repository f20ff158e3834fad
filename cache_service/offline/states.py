"""Which state of each agent holds together, where a part of the segments is lost: all of it, a beginning, or nothing.

Works on a new database into which rows were copied, and leaves in it what is whole and what a head stands on.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agentmem.validation import AgentKey
from cache_service.ledger import segments as ledger
from cache_service.offline import ledgers, tree
from cache_service.offline.findings import Finding
from cache_service.offline.transfer import Link
from cache_service.offline.tree import Holder, Segment, Tree


class Kept(NamedTuple):
    """What is left of an agent. `tokens` and `turns` are those of the state that is left, None where it is gone."""

    key: AgentKey
    tokens: int | None
    turns: int
    had_tokens: int
    had_turns: int
    lost_snapshots: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is lost but perhaps snapshots."""
        return self.tokens == self.had_tokens


def keep_newest(connection: sqlite3.Connection, links: Mapping[int, Link]) -> list[Kept]:
    """Give every agent the newest state that holds together, and drop what does not. Foreign keys are not enforced.

    `links` are the places of segments whose content is lost.
    """
    segments = tree.segments(connection)
    good = set(_good(connection, segments))
    known = {**links, **{number: Link(each.parent, each.parent_tokens) for number, each in segments.items()}}
    lost: dict[str, list[str]] = {}
    for snapshot in list(tree.snapshots(connection)):
        if snapshot.head not in good or ledgers.head_problem(connection, snapshot, segments):
            connection.execute("DELETE FROM snapshots WHERE id = ?", (snapshot.snapshot,))
            lost.setdefault(snapshot.uid, []).append(snapshot.name)
    _drop_turns(connection, good)
    kept = []
    for agent in list(tree.agents(connection)):
        tokens, turns = _keep_newest_of(connection, agent, segments, good, known)
        kept.append(Kept(agent.key, tokens, turns, agent.tokens, agent.turns, tuple(lost.get(agent.uid, ()))))
    connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in segments.keys() - good])
    _drop_strangers(connection)
    return kept


def remove_contradictory(connection: sqlite3.Connection) -> set[AgentKey]:
    """Check all ledgers once more, and delete the agents that contradict themselves; these agents."""
    findings: list[Finding] = []
    ledgers.check(connection, findings.append)
    wrong = {name for finding in findings for name in finding.agents}
    gone = set()
    for agent in list(tree.agents(connection)):
        if agent.agent in wrong:
            connection.execute("DELETE FROM agents WHERE uid = ?", (agent.uid,))
            gone.add(agent.key)
    _drop_strangers(connection)
    return gone


def _good(connection: sqlite3.Connection, segments: dict[int, Segment]) -> Iterator[int]:
    """Segments that hold together, as do all those that they stand on."""
    good: set[int] = set()
    for number in sorted(segments):
        segment = segments[number]
        stands = segment.parent is None or segment.parent in good
        if (
            stands
            and not ledgers.content_problem(connection, segment)
            and not ledgers.parent_problem(connection, segment, segments)
        ):
            good.add(number)
            yield number


def _drop_turns(connection: sqlite3.Connection, good: set[int]) -> None:
    """Turns whose segment is lost: a retry has to compute them again, not to be answered as durable."""
    rows = connection.execute("SELECT rowid, segment FROM turns WHERE segment IS NOT NULL").fetchall()
    lost = [(row,) for row, segment in rows if segment not in good]
    connection.executemany("DELETE FROM turns WHERE rowid = ?", lost)


def _keep_newest_of(
    connection: sqlite3.Connection,
    agent: Holder,
    segments: dict[int, Segment],
    good: set[int],
    links: Mapping[int, Link],
) -> tuple[int | None, int]:
    """The agent's tokens and turns from now on; None if it had to be deleted."""
    (newest,) = connection.execute("SELECT max(version) FROM turns WHERE uid = ?", (agent.uid,)).fetchone()
    if agent.head in good and not ledgers.head_problem(connection, agent, segments) and (newest or 0) <= agent.version:
        connection.execute("UPDATE agents SET published_version = version WHERE uid = ?", (agent.uid,))
        return agent.tokens, agent.turns
    for number, tokens in (*_beginnings(agent, links), *_earlier(connection, agent)):
        place = ledgers.cut_place(connection, segments[number], tokens) if number in good else None
        if place is not None and place[0] > 0:
            version = max(agent.version, newest or 0) + 1
            connection.execute(
                "UPDATE agents SET version = ?, published_version = ?, head_segment = ?, tokens = ?, text_bytes = ?,"
                " turns = ?, messages = 0, message_hash = x'' WHERE uid = ?",
                (version, version, number, *place, agent.uid),
            )
            return place[0], place[2]
    connection.execute("DELETE FROM agents WHERE uid = ?", (agent.uid,))
    return None, 0


def _beginnings(agent: Holder, links: Mapping[int, Link]) -> Iterator[tuple[int, int]]:
    """The segments of the agent's chain, newest first, each with the position up to which it counts."""
    number: int | None = agent.head
    tokens = agent.tokens
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
            if needed is None:
                connection.execute("DELETE FROM segments WHERE id = ?", (segment.id,))
            else:
                ledger.shorten(connection, segment.id, needed)
