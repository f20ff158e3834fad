"""The tree of segments, held in memory without its content: who stands on which segment, and who needs how much of it.

Agents and their snapshots stand on the chains of their heads, and past turns on those of their segments, where these
are still there. What no head and no turn stands on should have been erased.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.files.holding import OWN
from cache_service.ledger.segments import FRAGMENT, Head


class Segment(NamedTuple):
    """A segment without its content; the columns of its row."""

    id: int
    parent_id: int | None
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
    """Who has a head: an agent's present state, or a snapshot of it."""

    uid: str
    key: AgentKey
    snapshot: int | None
    """None: the agent itself."""
    name: str
    """Of the snapshot."""
    version: int
    head: Head

    @property
    def agent(self) -> str:
        """The agent, in words."""
        return "/".join(self.key)

    @property
    def where(self) -> str:
        """What it is, in words."""
        return f"agent {self.agent}" if self.snapshot is None else f"snapshot {self.name} of {self.agent}"

    @property
    def state(self) -> tuple[str, int]:
        """What warm.db calls it: a uid, and a snapshot or OWN."""
        return self.uid, OWN if self.snapshot is None else self.snapshot


_STATE = "x.version, x.head_segment, x.tokens, x.text_bytes, x.turns"
_HOLDERS = (
    f"SELECT uid, namespace, agent_id, model_id, NULL, '', {_STATE} FROM agents AS x UNION ALL"
    f" SELECT uid, namespace, agent_id, model_id, x.id, x.name, {_STATE} FROM snapshots AS x JOIN agents USING (uid)"
)


def segments(connection: Connection) -> dict[int, Segment]:
    """All segments, by id."""
    rows = connection.execute(f"SELECT {', '.join(Segment._fields)} FROM segments")
    return {row[0]: Segment(*row) for row in rows}


def holders(connection: Connection) -> list[Holder]:
    """All agents, and then all snapshots of agents that exist."""
    rows = connection.execute(_HOLDERS).fetchall()
    return [Holder(row[0], AgentKey(*row[1:4]), row[4], row[5], row[6], Head(*row[7:])) for row in rows]


def agents(connection: Connection) -> dict[str, str]:
    """All agents in words, by uid."""
    rows = connection.execute("SELECT uid, namespace, agent_id, model_id FROM agents")
    return {uid: "/".join(key) for uid, *key in rows}


class Tree:
    """Who stands where. A segment that is not there ends a chain."""

    def __init__(self, connection: Connection) -> None:
        """Raises what the database does."""
        self.segments = segments(connection)
        self.holders = holders(connection)
        self._stood: defaultdict[str, set[int | None]] = defaultdict(set)
        self._heads: defaultdict[int | None, list[Holder]] = defaultdict(list)
        for holder in self.holders:
            self._stood[holder.uid].add(holder.head.segment)
            self._heads[holder.head.segment].append(holder)
        self._turns: set[int] = set()
        for uid, number in connection.execute("SELECT uid, segment FROM turns WHERE segment IS NOT NULL"):
            self._turns.add(number)
            self._stood[uid].add(number)
        self._children: defaultdict[int | None, list[Segment]] = defaultdict(list)
        for segment in self.segments.values():
            self._children[segment.parent_id].append(segment)

    def chain(self, number: int | None) -> Iterator[Segment]:
        """The segment and its ancestors, newest first, as far as they are there."""
        while number is not None and (segment := self.segments.get(number)) is not None:
            yield segment
            number = segment.parent_id if (segment.parent_id or 0) < number else None

    def stands_on(self, uid: str) -> set[int]:
        """The segments of an agent's present and past states and of its snapshots."""
        return self._closed(self._stood[uid])

    def users(self) -> dict[int, tuple[str, ...]]:
        """The agents that stand on each segment."""
        found: defaultdict[int, set[str]] = defaultdict(set)
        for uid, name in {holder.uid: holder.agent for holder in self.holders}.items():
            for segment in self.stands_on(uid):
                found[segment].add(name)
        return {segment: tuple(sorted(agents)) for segment, agents in found.items()}

    def unheld(self, without: str | None = None) -> Iterator[tuple[Segment, int | None]]:
        """Segments of which no head needs the end (to how many tokens they are needed), or all (None); newest first.

        `without` an agent that is what its deletion takes of the segments that it stands on.
        """
        gone: set[int] = set()
        for number in sorted(self.segments if without is None else self.stands_on(without), reverse=True):
            if without is None and number in self._turns:
                continue
            segment = self.segments[number]
            needed = self._needed(segment, gone, without)
            if needed is None:
                gone.add(number)
            if needed is None or needed < segment.tokens:
                yield segment, needed

    def _needed(self, segment: Segment, gone: Iterable[int], without: str | None = None) -> int | None:
        """How many of its tokens heads and other segments stand on, as `ledger.drop_unused` counts; None: nothing."""
        ends = [each.head.tokens for each in self._heads[segment.id] if each.uid != without]
        ends += [child.parent_tokens for child in self._children[segment.id] if child.id not in gone]
        return max(ends) - segment.parent_tokens if ends else None

    def _closed(self, lasts: Iterable[int | None]) -> set[int]:
        used: set[int] = set()
        for last in lasts:
            for segment in self.chain(last):
                if segment.id in used:
                    break
                used.add(segment.id)
        return used
