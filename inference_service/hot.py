"""Hot state: the caches of agents that spoke lately, kept in memory. The event loop owns it."""

from collections import OrderedDict
from dataclasses import dataclass, field

from agentmem.keys import AgentKey
from inference_service.engine.generation import Caches
from inference_service.memory.ledger import Ledger, Version


@dataclass
class HotState:
    """An agent's ledger and caches, valid for exactly one version. The caches hold exactly the ledger's tokens.

    `published` are the blocks that are known to be on disk.
    """

    version: Version
    ledger: Ledger
    caches: Caches
    published: frozenset[bytes] = field(default_factory=frozenset)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return sum(cache.nbytes for cache in self.caches)


class HotAgents:
    """Hot states by key, at most `limit_bytes` of them, least recently used dropped first.

    A turn drops its agent's state here before it works on the caches, and puts the new one in afterwards.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._states: OrderedDict[AgentKey, HotState] = OrderedDict()

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(state.nbytes for state in self._states.values())

    def get(self, key: AgentKey) -> HotState | None:
        """The agent's state. Drop it before changing its caches: nothing in flight may be found or dropped here."""
        return self._states.get(key)

    def put(self, key: AgentKey, state: HotState) -> list[AgentKey]:
        """Keep the agent's state; the agents that were dropped for it."""
        self._states[key] = state
        self._states.move_to_end(key)
        dropped = []
        while len(self._states) > 1 and self.nbytes > self._limit:
            dropped.append(self._states.popitem(last=False)[0])
        return dropped

    def drop(self, key: AgentKey) -> None:
        """Forget the agent's state, if there is one."""
        self._states.pop(key, None)
