"""The tree of segments, held in memory without its content: who stands on which segment, and who needs how much of it.

Agents and their snapshots stand on the chains of their heads, and past turns on those of their segments, where these
are still there. What no head and no turn stands on should have been erased.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentmem.validation import AgentKey
from cache_service.ledger.segments import FRAGMENT


class Segment(NamedTuple):
    """A segment without its content."""

    id: int
    parent: int | None
    parent_tokens: int
    parent_bytes: int
    tokens: int
    text_bytes: int
    generated_tokens: int
    version: int
    turns: int
    tokenizer_hash: str
    namespace: str

    @property
    def is_cut(self) -> bool:
        """Whether its end was erased; then its own turn doesn't count."""
        return self.generated_tokens == FRAGMENT

    @property
    def bytes(self) -> int:
        """Bytes of its content: 4 a token id, 4 an offset, and its text."""
        return 8 * self.tokens + self.text_bytes


class Holder(NamedTuple):
    """A head with its counters, which follow from its chain: an agent's present state, or a snapshot of it."""

    uid: str
    key: AgentKey
    snapshot: int | None
    """None: the agent itself."""
    name: str
    """Of the snapshot."""
    version: int
    head: int
    tokens: int
    text_bytes: int
    turns: int

    @property
    def agent(self) -> str:
        """The agent, in words."""
        return "/".join(self.key)

    @property
    def where(self) -> str:
        """What it is, in words."""
        return f"agent {self.agent}" if self.snapshot is None else f"snapshot {self.name} of {self.agent}"


COLUMNS = (
    "id, parent_id, parent_tokens, parent_bytes, tokens, text_bytes, generated_tokens, version, turns, tokenizer_hash,"
    " namespace"
)
ALL_REFS = (
    "SELECT uid, kind, chain_hash FROM refs WHERE warm UNION ALL SELECT s.uid, r.kind, r.chain_hash"
    " FROM snapshot_refs AS r JOIN snapshots AS s ON s.id = r.snapshot WHERE r.warm"
)
"""Files on the disk that agents and their snapshots refer to."""
_STATE = "x.version, x.head_segment, x.tokens, x.text_bytes, x.turns"


def segments(connection: sqlite3.Connection) -> dict[int, Segment]:
    """All segments, by id."""
    return {row[0]: Segment(*row) for row in connection.execute(f"SELECT {COLUMNS} FROM segments")}


def agents(connection: sqlite3.Connection) -> Iterator[Holder]:
    """All agents' present states."""
    rows = connection.execute(f"SELECT uid, namespace, agent_id, model_id, {_STATE} FROM agents AS x")
    for uid, namespace, agent_id, model_id, *state in rows:
        yield Holder(uid, AgentKey(namespace, agent_id, model_id), None, "", *state)


def snapshots(connection: sqlite3.Connection) -> Iterator[Holder]:
    """All snapshots of agents that exist."""
    rows = connection.execute(
        f"SELECT uid, namespace, agent_id, model_id, x.id, x.name, {_STATE} FROM snapshots AS x JOIN agents USING (uid)"
    )
    for uid, namespace, agent_id, model_id, *rest in rows:
        yield Holder(uid, AgentKey(namespace, agent_id, model_id), *rest)


def holders(connection: sqlite3.Connection) -> list[Holder]:
    """All agents and all snapshots."""
    return [*agents(connection), *snapshots(connection)]


class Tree:
    """Who stands where. A segment that is not there ends a chain."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Raises sqlite3.DatabaseError."""
        self.segments = segments(connection)
        self.holders = holders(connection)
        self._stood: dict[str, set[int]] = {holder.uid: set() for holder in self.holders}
        self._heads: dict[int, list[Holder]] = {}
        for holder in self.holders:
            self._stood[holder.uid].add(holder.head)
            self._heads.setdefault(holder.head, []).append(holder)
        self._turns: set[int] = set()
        for uid, segment in connection.execute("SELECT uid, segment FROM turns WHERE segment IS NOT NULL"):
            self._turns.add(segment)
            if uid in self._stood:
                self._stood[uid].add(segment)
        self._children: dict[int, list[Segment]] = {}
        for segment in self.segments.values():
            if segment.parent is not None:
                self._children.setdefault(segment.parent, []).append(segment)

    def chain(self, last: int) -> Iterator[Segment]:
        """The segment and its ancestors, newest first, as far as they are there."""
        segment = self.segments.get(last)
        while segment is not None:
            yield segment
            below = self.segments.get(segment.parent) if segment.parent is not None else None
            segment = below if below is not None and below.id < segment.id else None

    def stands_on(self, uid: str) -> set[int]:
        """The segments of an agent's present and past states and of its snapshots."""
        return self._closed(self._stood[uid])

    def users(self) -> dict[int, tuple[str, ...]]:
        """The agents that stand on each segment."""
        found: dict[int, set[str]] = {}
        names = {holder.uid: holder.agent for holder in self.holders}
        for uid, name in names.items():
            for segment in self.stands_on(uid):
                found.setdefault(segment, set()).add(name)
        return {segment: tuple(sorted(agents)) for segment, agents in found.items()}

    def left_by(self, uid: str) -> Iterator[tuple[Segment, int | None]]:
        """What an agent's deletion takes of the segments that it stands on: to how many tokens, None for all of it."""
        gone: set[int] = set()
        for number in sorted(self.stands_on(uid), reverse=True):
            segment = self.segments[number]
            needed = self._needed(segment, gone, uid)
            if needed is None:
                gone.add(number)
            if needed is None or needed < segment.tokens:
                yield segment, needed

    def unheld(self) -> Iterator[tuple[Segment, int | None]]:
        """Segments of which no head needs the end (to how many tokens they are needed), or all (None); newest first."""
        held = self._closed(set(self._heads) | self._turns)
        gone = self.segments.keys() - held
        for number in sorted(self.segments, reverse=True):
            segment = self.segments[number]
            if number in gone:
                yield segment, None
            elif number not in self._turns:
                needed = self._needed(segment, gone)
                if needed is not None and needed < segment.tokens:
                    yield segment, needed

    def _needed(self, segment: Segment, gone: Iterable[int], without: str | None = None) -> int | None:
        """How many of its tokens heads and other segments stand on, as `ledger.drop_unused` counts; None: nothing."""
        ends = [head.tokens for head in self._heads.get(segment.id, ()) if head.uid != without]
        ends += [child.parent_tokens for child in self._children.get(segment.id, ()) if child.id not in gone]
        return max(ends) - segment.parent_tokens if ends else None

    def _closed(self, lasts: Iterable[int]) -> set[int]:
        used: set[int] = set()
        for last in lasts:
            for segment in self.chain(last):
                if segment.id in used:
                    break
                used.add(segment.id)
        return used
