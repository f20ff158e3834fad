"""The storage half of AgentService's tiers: what stays on disk, for how long, and what goes now."""

from functools import partial
from typing import Any

import grpc

from agentmem.expiry import IdleTimes
from agentmem.hints import from_request
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2 as pb
from agentmem.v1 import types_pb2
from cache_service import agent_conversions, agents, conversions, expiry
from cache_service.servicer_base import AgentServicerBase

Context = grpc.aio.ServicerContext[Any, Any]


class TierServicer(AgentServicerBase):
    """Pins, times to live, evictions, what happens at the end of the context, and hints on whose turn comes when."""

    async def PinAgent(self, request: pb.PinAgentRequest, context: Context) -> pb.PinAgentResponse:
        key = AgentKey.from_proto(request.key)
        agent = await self._database.write(partial(expiry.set_pinned, key=key, pinned=request.pinned))
        return pb.PinAgentResponse(agent=agent_conversions.agent_message(agent))

    async def SetAgentTtl(self, request: pb.SetAgentTtlRequest, context: Context) -> pb.SetAgentTtlResponse:
        key = AgentKey.from_proto(request.key)
        set_times = partial(expiry.set_times, key=key, times=IdleTimes.from_proto(request))
        return pb.SetAgentTtlResponse(agent=agent_conversions.agent_message(await self._database.write(set_times)))

    async def SetContextPolicy(
        self, request: pb.SetContextPolicyRequest, context: Context
    ) -> pb.SetContextPolicyResponse:
        key = AgentKey.from_proto(request.key)
        policy = conversions.context_policy(request.context_policy, needed=True)
        agent = await self._database.write(partial(agents.set_context_policy, key=key, policy=policy))
        return pb.SetContextPolicyResponse(agent=agent_conversions.agent_message(agent))

    async def EvictAgent(self, request: pb.EvictAgentRequest, context: Context) -> pb.EvictAgentResponse:
        key = AgentKey.from_proto(request.key)
        if agent_conversions.only_hot(request.tier):
            await self._database.read(partial(agents.existing, key=key))
            return pb.EvictAgentResponse()
        freed = await self._blocks.evict_agent(key, objects=request.tier == types_pb2.TIER_REMOTE)
        return pb.EvictAgentResponse(freed_bytes=freed)

    async def SetTurnHints(self, request: pb.SetTurnHintsRequest, context: Context) -> pb.SetTurnHintsResponse:
        self._hints.set(from_request(request))
        return pb.SetTurnHintsResponse()
