"""Tiers on the worker: what the store keeps on disk, and what memory lets go."""

from typing import Any

from agentmem.errors import InvalidArgument
from agentmem.hints import from_request
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2, types_pb2
from inference_service.servicers.servicer_base import AgentServicerBase


class TierServicer(AgentServicerBase):
    """Pins, times, context policies, prefetches and evictions, each behind the running turn; and hints on turns."""

    async def PinAgent(self, request: agent_pb2.PinAgentRequest, context: Any) -> agent_pb2.PinAgentResponse:
        async with self._holding(AgentKey.from_proto(request.key)):
            response = await self._store.pin_agent(request)
        self._complete(response.agent)
        return response

    async def SetAgentTtl(self, request: agent_pb2.SetAgentTtlRequest, context: Any) -> agent_pb2.SetAgentTtlResponse:
        async with self._holding(AgentKey.from_proto(request.key)):
            response = await self._store.set_agent_ttl(request)
        self._complete(response.agent)
        return response

    async def SetContextPolicy(
        self, request: agent_pb2.SetContextPolicyRequest, context: Any
    ) -> agent_pb2.SetContextPolicyResponse:
        async with self._holding(AgentKey.from_proto(request.key)):
            response = await self._store.set_context_policy(request)
        self._complete(response.agent)
        return response

    async def EvictAgent(self, request: agent_pb2.EvictAgentRequest, context: Any) -> agent_pb2.EvictAgentResponse:
        key = AgentKey.from_proto(request.key)
        async with self._holding(key):
            if request.tier in (types_pb2.TIER_WARM, types_pb2.TIER_REMOTE):
                await self._persister.forget(key)  # or it would come back to the disk when this is over
            else:
                await self._persister.settle(key)  # what is not on disk yet would stay in the pool until it is
            response = await self._store.evict_agent(request)
            if (loaded := self._models.loaded(key.model_id)) is not None:
                response.freed_bytes += loaded.memory.evict(key)
        return response

    async def PrefetchAgent(
        self, request: agent_pb2.PrefetchAgentRequest, context: Any
    ) -> agent_pb2.PrefetchAgentResponse:
        key = AgentKey.from_proto(request.key)
        if request.tier not in (types_pb2.TIER_UNSPECIFIED, types_pb2.TIER_HOT):
            raise InvalidArgument("tier", "must be TIER_HOT: KV is prefetched into the pool")
        async with self._models.hold(key.model_id) as model, self._holding(key):
            prefetched = await self._prefetcher.prefetch(key, model)
        return agent_pb2.PrefetchAgentResponse(tokens=prefetched.tokens, bytes=prefetched.load_bytes)

    async def SetTurnHints(
        self, request: agent_pb2.SetTurnHintsRequest, context: Any
    ) -> agent_pb2.SetTurnHintsResponse:
        hints = from_request(request)
        self._hints.set(hints)  # First: a commit meanwhile must not tell the store to forget what was just said.
        return await self._store.set_turn_hints(request)
