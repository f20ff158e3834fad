"""What the RPCs on agents have in common: who is held, what memory has of it, and what it adds to an answer."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agentmem.hints import TurnHints
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from inference_service.models.serving import Models
from inference_service.portable.mover import Mover
from inference_service.storage.client import StoreClient
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.prefetching import Prefetcher
from inference_service.turns.preparing import Preparer


class AgentServicerBase(agent_pb2_grpc.AgentServiceServicer):
    """AgentService without an RPC. Event loop."""

    def __init__(
        self,
        store: StoreClient,
        models: Models,
        preparer: Preparer,
        persister: Persister,
        prefetcher: Prefetcher,
        locks: AgentLocks,
        hints: TurnHints,
        mover: Mover,
    ) -> None:
        self._store = store
        self._models = models
        self._preparer = preparer
        self._persister = persister
        self._prefetcher = prefetcher
        self._locks = locks
        self._hints = hints
        self._mover = mover

    @asynccontextmanager
    async def _holding(self, *keys: AgentKey) -> AsyncIterator[None]:
        """Hold agents, in an order that all go by, or two calls could wait for each other."""
        async with AsyncExitStack() as held:
            for key in sorted(set(keys)):
                await held.enter_async_context(self._locks.hold(key))
            yield

    def _drop_hot(self, key: AgentKey) -> None:
        if (model := self._models.loaded(key.model_id)) is not None:
            model.memory.hot.drop(key)

    def _complete(self, agent: agent_pb2.Agent) -> None:
        if (model := self._models.loaded(agent.key.model_id)) is not None:
            if AgentKey.from_proto(agent.key) in model.memory.hot:
                agent.tier = types_pb2.TIER_HOT
            agent.context_remaining = max(0, model.context_length - agent.tokens)
