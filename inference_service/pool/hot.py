"""KV in the pool that no active turn needs."""

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
    """One version's ledger and KV. `windows` are stored tokens by position, on disk or being written."""

    version: Version
    ledger: Ledger
    table: Table
    windows: Mapping[int, int] = field(default_factory=dict)


class Leftover(NamedTuple):
    """KV that was not committed, or is of an earlier version, by its last block. `listed`: the owner can name the
    agent.
    """

    key: AgentKey
    block: int
    listed: bool


Evictable: TypeAlias = AgentKey | Leftover


class HotAgents:
    """Hot states and leftovers, with references, in the order of eviction: leftovers, then agents by hint and last use.
    A turn takes its agent's state out.
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
        yield from list(self._leftovers)
        yield from self._hints.order(self._states)

    def evictable_before(self, to: AgentKey) -> list[Evictable]:
        """Return what should be evicted before the agent `to`."""
        return [*self._leftovers, *self._hints.evictable_before(self._states, to)]

    def get(self, key: AgentKey) -> HotState | None:
        return self._states.get(key)

    def present(self, key: AgentKey, version: Version) -> HotState | None:
        """Return a state of that version; another becomes a leftover."""
        state = self._states.get(key)
        if state is None or state.version == version:
            return state
        if state.version.uid == version.uid:
            self.leave(key, self._states.pop(key).table, listed=True)
        else:
            self.forget(key)  # a deleted agent's, by another node
        return None

    def take(self, key: AgentKey) -> HotState | None:
        return self._states.pop(key, None)

    def put(self, key: AgentKey, state: HotState) -> None:
        """Leftovers that it covers go."""
        self.drop(key)
        self._states[key] = state
        self._drop_covered(key, state.table)

    def leave(self, key: AgentKey, table: Table, *, listed: bool) -> None:
        self._drop_covered(key, table)
        self._leftovers[Leftover(key, table.blocks[-1], listed)] = table

    def touch(self, key: AgentKey) -> None:
        self._states.move_to_end(key)

    def drop(self, key: Evictable) -> None:
        if isinstance(key, Leftover):
            if (table := self._leftovers.pop(key, None)) is not None:
                self._pool.release(table)
        elif (state := self.take(key)) is not None:
            self._pool.release(state.table)

    def forget(self, key: AgentKey) -> None:
        self.drop(key)
        self._drop_leftovers(lambda left: left.key == key)

    def erase(self, key: AgentKey) -> None:
        """Drop a deleted agent's KV, and leftovers of its namespace that nobody can name."""
        self.forget(key)
        self._drop_leftovers(lambda left: left.key.namespace == key.namespace and not left.listed)

    def tables(self, keys: Iterable[Evictable] | None = None) -> list[Table]:
        wanted = self if keys is None else keys
        return [self._leftovers[key] if isinstance(key, Leftover) else self._states[key].table for key in wanted]

    def _drop_covered(self, key: AgentKey, table: Table) -> None:
        blocks = set(table.blocks)
        self._drop_leftovers(lambda left: left.key == key and blocks.issuperset(self._leftovers[left].blocks))

    def _drop_leftovers(self, matches: Callable[[Leftover], bool]) -> None:
        for left in [left for left in self._leftovers if matches(left)]:
            self.drop(left)
