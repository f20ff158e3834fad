"""AgentService on the worker: the store's half, after the agent's running turn.

A state is kept or moved once its KV is written. Forks and moved agents find KV in the pool by names of blocks.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agentmem.errors import InvalidArgument, NotFound
from agentmem.kv import tiers as kv_tiers
from agentmem.kv.hints import TurnHints, from_request
from agentmem.kv.ledger import Version
from agentmem.v1 import agent_pb2 as pb
from agentmem.v1 import agent_pb2_grpc, types_pb2
from agentmem.validation import AgentKey, check_text
from inference_service.models.serving import Models
from inference_service.servicers.portable import PortableAgents
from inference_service.servicers.requests import probe_request
from inference_service.storage.client import StoreClient
from inference_service.turns.decoding import check_input
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.planning import TurnPlanner, opened
from inference_service.turns.prefetching import Prefetcher
from inference_service.turns.restored import Restored
from inference_service.turns.restoring import Restorer
from inference_service.turns.turn import Turn


def _listing(name: str) -> Callable[..., Awaitable[Any]]:
    async def listed(self: "AgentServicer", request: Any, _context: Any) -> Any:
        AgentKey.from_proto(request.key)
        return await self.store.call(getattr(self.store.agents, name), request)

    return listed


def _changing(name: str, *, moves: bool = False) -> Callable[..., Awaitable[Any]]:
    """The RPC comes after the agent's running turn; if it `moves`, once its KV is written."""

    async def changed(self: "AgentServicer", request: Any, _context: Any) -> Any:
        key = AgentKey.from_proto(request.key)
        async with self.locks.hold(key):
            if moves:
                await self.persister.wait_written(key)
            response = await self.store.call(getattr(self.store.agents, name), request)
        self._complete(response.agent)
        return response

    return changed


@dataclass(eq=False, repr=False)
class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Other RPCs answer UNIMPLEMENTED. Event loop."""

    store: StoreClient
    models: Models
    planner: TurnPlanner
    restorer: Restorer
    persister: Persister
    prefetcher: Prefetcher
    locks: AgentLocks
    hints: TurnHints
    portable: PortableAgents

    ListTurns, ListSnapshots = _listing("ListTurns"), _listing("ListSnapshots")
    TrimAgent = _changing("TrimAgent", moves=True)
    RestoreSnapshot = _changing("RestoreSnapshot", moves=True)
    PinAgent, SetAgentTtl = _changing("PinAgent"), _changing("SetAgentTtl")
    SetContextPolicy = _changing("SetContextPolicy")

    async def GetAgent(self, request: pb.GetAgentRequest, context: Any) -> pb.GetAgentResponse:
        await self.locks.settled(AgentKey.from_proto(request.key))
        response = await self.store.call(self.store.agents.GetAgent, request)
        self._complete(response.agent)
        return response

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Any) -> pb.ListAgentsResponse:
        response = await self.store.call(self.store.agents.ListAgents, request)
        for agent in response.agents:
            self._complete(agent)
        return response

    async def ListBlocks(self, request: pb.ListBlocksRequest, context: Any) -> pb.ListBlocksResponse:
        key = AgentKey.from_proto(request.key)
        await self.locks.settled(key)
        model = self.models.loaded(key.model_id)
        if model is not None and not request.fingerprint:
            request.fingerprint = model.fingerprint
        response = await self.store.call(self.store.agents.ListBlocks, request)
        state = model.memory.hot.get(key) if model is not None else None
        if state is not None and state.version == Version.from_proto(response.version):
            kv_tiers.with_hot(response, state.table.tokens, state.ledger.offsets.tolist())
        return response

    async def FindAgent(self, request: pb.FindAgentRequest, context: Any) -> pb.FindAgentResponse:
        response = await self.store.call(self.store.agents.FindAgent, request)
        if response.HasField("agent"):
            self._complete(response.agent)
        return response

    async def ProbeAgent(self, request: pb.ProbeAgentRequest, context: Any) -> pb.ProbeAgentResponse:
        probe = probe_request(request)
        await self.locks.settled(probe.key)
        async with self.models.hold(probe.key.model_id) as model:
            check_input(probe.input, model)
            agent, turn = await opened(self.store, model, probe.key, peek=True), Turn(probe)
            await self.planner.plan(turn, model, agent)
            if turn.retokenized:
                turn.restored = Restored(model, reason=types_pb2.MISS_REASON_INCOMPATIBLE)
            else:
                await self.persister.wait_resumable(probe.key, turn.earlier_checkpoints)
                turn.restored = await self.restorer.probe(probe.key, model, turn.lookup)
        return pb.ProbeAgentResponse(
            cache=turn.cache_report(), version=agent.version.to_proto(), context_trim=turn.context_trim()
        )

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: Any) -> pb.DeleteAgentResponse:
        key = AgentKey.from_proto(request.key, any_model=True)
        keys = [key] if key.model_id else await self._on_all_models(key)
        async with self.locks.hold(*keys):
            for each in keys:
                await self.persister.forget(each)  # Or what is erased would be written once more.
                self._erase_hot(each)
            return await self.store.call(self.store.agents.DeleteAgent, request)

    async def ForkAgent(self, request: pb.ForkAgentRequest, context: Any) -> pb.ForkAgentResponse:
        key = AgentKey.from_proto(request.key)
        target = key._replace(agent_id=check_text("new_agent_id", request.new_agent_id))
        async with self.locks.hold(key, target):
            await self.persister.wait_written(key)
            response = await self.store.call(self.store.agents.ForkAgent, request)
        self._complete(response.agent)
        return response

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Any) -> pb.CreateSnapshotResponse:
        key = AgentKey.from_proto(request.key)
        async with self.locks.hold(key):
            await self.persister.wait_written(key)
            return await self.store.call(self.store.agents.CreateSnapshot, request)

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Any) -> pb.DeleteSnapshotResponse:
        async with self.locks.hold(AgentKey.from_proto(request.key)):
            return await self.store.call(self.store.agents.DeleteSnapshot, request)

    async def EvictAgent(self, request: pb.EvictAgentRequest, context: Any) -> pb.EvictAgentResponse:
        key = AgentKey.from_proto(request.key)
        async with self.locks.hold(key):
            if request.tier in (types_pb2.TIER_WARM, types_pb2.TIER_REMOTE):
                await self.persister.forget(key)  # Or it would come back to the disk when this is over.
            else:
                await self.persister.wait_written(key)  # What is not on disk yet would stay in the pool until it is.
            try:
                response = await self.store.call(self.store.agents.EvictAgent, request)
            except NotFound:  # it was deleted on another machine
                await self.persister.forget(key)
                self._erase_hot(key)
                raise
            if (loaded := self.models.loaded(key.model_id)) is not None:
                response.freed_bytes += loaded.memory.evict(key)
        return response

    async def PrefetchAgent(self, request: pb.PrefetchAgentRequest, context: Any) -> pb.PrefetchAgentResponse:
        key = AgentKey.from_proto(request.key)
        if request.tier not in (types_pb2.TIER_UNSPECIFIED, types_pb2.TIER_HOT):
            raise InvalidArgument("tier", "must be TIER_HOT: KV is prefetched into the pool")
        async with self.models.hold(key.model_id) as model, self.locks.hold(key):
            prefetched = await self.prefetcher.prefetch(key, model)
        return pb.PrefetchAgentResponse(tokens=prefetched.tokens, bytes=prefetched.load_bytes)

    async def SetTurnHints(self, request: pb.SetTurnHintsRequest, context: Any) -> pb.SetTurnHintsResponse:
        hints = from_request(request)
        self.hints.set(hints)  # First: a commit meanwhile must not tell the store to forget what was just said.
        return await self.store.call(self.store.agents.SetTurnHints, request)

    async def ExportAgent(self, request: pb.ExportAgentRequest, context: Any) -> AsyncIterator[pb.ExportAgentResponse]:
        async with aclosing(self.portable.exported(AgentKey.from_proto(request.key))) as chunks:
            async for chunk in chunks:
                yield pb.ExportAgentResponse(chunk=chunk)

    async def ImportAgent(
        self, request_iterator: AsyncIterator[pb.ImportAgentRequest], context: Any
    ) -> pb.ImportAgentResponse:
        target, kv_misfit = await self.portable.imported(request_iterator)
        response = await self.store.call(self.store.agents.GetAgent, pb.GetAgentRequest(key=target.to_proto()))
        self._complete(response.agent)
        return pb.ImportAgentResponse(agent=response.agent, kv_misfit=kv_misfit)

    async def _on_all_models(self, key: AgentKey) -> list[AgentKey]:
        request = pb.ListAgentsRequest(namespace=key.namespace, agent_id=key.agent_id, page_size=1000)
        response = await self.store.call(self.store.agents.ListAgents, request)
        return [key._replace(model_id=agent.key.model_id) for agent in response.agents]

    def _complete(self, agent: pb.Agent) -> None:
        if (model := self.models.loaded(agent.key.model_id)) is not None:
            state = model.memory.hot.get(AgentKey.from_proto(agent.key))
            if state is not None and state.version == Version.from_proto(agent.version):
                agent.tier = types_pb2.TIER_HOT
            agent.context_remaining = max(0, model.context_length - agent.tokens)

    def _erase_hot(self, key: AgentKey) -> None:
        if (model := self.models.loaded(key.model_id)) is not None:
            model.memory.hot.erase(key)
