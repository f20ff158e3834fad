"""KV in a model's pool that no active turn needs: of idle agents, and of what agents have left."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.pool.kv import KVPool, Table


@dataclass(frozen=True)
class HotState:
    """An agent's ledger and the table of its KV; valid for exactly one version.

    `windows` are on disk or being written: stored tokens by position.
    """

    version: Version
    ledger: Ledger
    table: Table
    windows: Mapping[int, int] = field(default_factory=dict)


class Leftover(NamedTuple):
    """KV that an agent's turn computed and did not commit, or of an earlier version, by its last block.

    `listed`: the agent is in the ledger, so its owner can name it.
    """

    key: AgentKey
    block: int
    listed: bool


Evictable: TypeAlias = AgentKey | Leftover


class HotAgents:
    """Idle agents' hot states by key, and leftovers, in the order of eviction.

    Leftovers go first, oldest first; then agents by hint, least recently used first. All hold references on their
    tables. A turn takes its agent's state out, and puts it, or a new one, back. `hints` are those of all models'
    agents.
    """

    def __init__(self, pool: KVPool, hints: TurnHints) -> None:
        self._pool = pool
        self._hints = hints
        self._states: OrderedDict[AgentKey, HotState] = OrderedDict()
        self._leftovers: dict[Leftover, Table] = {}

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Evictable]:
        """Yield what can be evicted, in that order."""
        yield from list(self._leftovers)
        yield from self._hints.order(self._states)

    def evictable_before(self, to: AgentKey) -> list[Evictable]:
        """Return what should be evicted before the agent `to`, if it were here, in the order of eviction."""
        return [*self._leftovers, *self._hints.evictable_before(self._states, to)]

    def get(self, key: AgentKey) -> HotState | None:
        """Return the agent's state, which stays here."""
        return self._states.get(key)

    def present(self, key: AgentKey, version: Version) -> HotState | None:
        """Return the agent's state if it is of that version; else it becomes a leftover, whose blocks are found by
        their names.
        """
        state = self._states.get(key)
        if state is None or state.version == version:
            return state
        if state.version.uid == version.uid:
            self.leave(key, self._states.pop(key).table, listed=True)
        else:
            self.forget(key)  # a deleted agent's, by another node
        return None

    def take(self, key: AgentKey) -> HotState | None:
        """Remove and return the agent's state, with the references on its table."""
        return self._states.pop(key, None)

    def put(self, key: AgentKey, state: HotState) -> None:
        """Keep the agent's state, with the references on its table, as the most recently used. Leftovers that it covers
        go.
        """
        self.drop(key)
        self._states[key] = state
        self._drop_covered(key, state.table)

    def leave(self, key: AgentKey, table: Table, *, listed: bool) -> None:
        """Keep KV that the agent's turn computed, with the references on its table."""
        self._drop_covered(key, table)
        self._leftovers[Leftover(key, table.blocks[-1], listed)] = table

    def touch(self, key: AgentKey) -> None:
        """Mark the agent as the most recently used."""
        self._states.move_to_end(key)

    def drop(self, key: Evictable) -> None:
        if isinstance(key, Leftover):
            if (table := self._leftovers.pop(key, None)) is not None:
                self._pool.release(table)
        elif (state := self.take(key)) is not None:
            self._pool.release(state.table)

    def forget(self, key: AgentKey) -> None:
        """Drop the agent's state and its leftovers."""
        self.drop(key)
        self._drop_leftovers(lambda left: left.key == key)

    def erase(self, key: AgentKey) -> None:
        """Drop a deleted agent's KV, and leftovers of agents of its namespace that nobody can name."""
        self.forget(key)
        self._drop_leftovers(lambda left: left.key.namespace == key.namespace and not left.listed)

    def tables(self, keys: Iterable[Evictable] | None = None) -> list[Table]:
        """By default all."""
        wanted = self if keys is None else keys
        return [self._leftovers[key] if isinstance(key, Leftover) else self._states[key].table for key in wanted]

    def _drop_covered(self, key: AgentKey, table: Table) -> None:
        blocks = set(table.blocks)
        self._drop_leftovers(lambda left: left.key == key and blocks.issuperset(self._leftovers[left].blocks))

    def _drop_leftovers(self, matches: Callable[[Leftover], bool]) -> None:
        for left in [left for left in self._leftovers if matches(left)]:
            self.drop(left)
