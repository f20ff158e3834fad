"""Hot state: the caches of agents that spoke lately, kept in memory. The event loop owns it."""

from collections import OrderedDict
from dataclasses import dataclass, field

from agentmem.keys import AgentKey
from inference_service.engine.geometry import Caches
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
        self._states: OrderedDict[AgentKey, tuple[HotState, int]] = OrderedDict()
        self.nbytes = 0
        """Bytes of all caches, as they were when they were put. May be read from any thread."""

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: AgentKey) -> HotState | None:
        """The agent's state. Drop it before changing its caches: nothing in flight may be found or dropped here."""
        state, _ = self._states.get(key, (None, 0))
        return state

    def put(self, key: AgentKey, state: HotState) -> list[AgentKey]:
        """Keep the agent's state, as the most recently used; the agents that were dropped for it."""
        self.drop(key)
        size = state.nbytes
        self._states[key] = state, size
        self.nbytes += size
        dropped = []
        while self.nbytes > self._limit:
            oldest = next(iter(self._states))
            self.drop(oldest)
            dropped.append(oldest)
        return dropped

    def drop(self, key: AgentKey) -> None:
        """Forget the agent's state, if there is one."""
        _, size = self._states.pop(key, (None, 0))
        self.nbytes -= size
