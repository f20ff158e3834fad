"""The idle agents of a model, whose KV is in its pool."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.pool.kv import KVPool, Table


@dataclass(frozen=True)
class HotState:
    """An agent's ledger, and the table of its tokens' KV; valid for exactly one version: uid, number and revision.

    After a trim or a restore the table is that of the full blocks which the ledger had in common with the one before.
    `windows` are windows that are on disk or on their way there: stored tokens by position.
    """

    version: Version
    ledger: Ledger
    table: Table
    windows: Mapping[int, int] = field(default_factory=dict)


class HotAgents:
    """Idle agents' hot states by key, in the order of eviction: by hint, then least recently used first.

    It holds the references on their tables. A turn takes its agent's state out, so that nothing in flight can be
    evicted, and puts it, or a new one, back. `hints` are all agents', also those of other models.
    """

    def __init__(self, pool: KVPool, hints: TurnHints) -> None:
        self._pool = pool
        self._hints = hints
        self._states: OrderedDict[AgentKey, HotState] = OrderedDict()

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[AgentKey]:
        """Yield keys in the order of eviction."""
        return iter(self._hints.order(self._states))

    def evictable_before(self, to: AgentKey) -> list[AgentKey]:
        """Return the keys, in that order, that should be evicted before the agent `to` would be, if it were here."""
        return self._hints.evictable_before(self._states, to)

    def get(self, key: AgentKey) -> HotState | None:
        """Return the agent's state, which stays here."""
        return self._states.get(key)

    def take(self, key: AgentKey) -> HotState | None:
        """Remove and return the agent's state, if there is one, with the references on its table."""
        return self._states.pop(key, None)

    def put(self, key: AgentKey, state: HotState) -> None:
        """Keep the agent's state, with the references on its table, as the most recently used."""
        self.drop(key)
        self._states[key] = state

    def touch(self, key: AgentKey) -> None:
        """Mark the agent, which is here, as the most recently used."""
        self._states.move_to_end(key)

    def drop(self, key: AgentKey) -> None:
        """Forget the agent's state, if there is one."""
        if (state := self.take(key)) is not None:
            self._pool.release(state.table)

    def tables(self, keys: Iterable[AgentKey] | None = None) -> list[Table]:
        """Return the tables of these agents, which are here; by default all tables."""
        return [self._states[key].table for key in (self._states if keys is None else keys)]
