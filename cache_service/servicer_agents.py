"""The storage half of AgentService, for the worker; what needs the model is the worker's own."""

from functools import partial
from itertools import accumulate
from typing import Any

import grpc

from agentmem import paging
from agentmem.errors import InvalidArgument, NotFound, Unavailable
from agentmem.keys import AgentKey, check_text
from agentmem.v1 import agent_pb2 as pb
from cache_service import agent_conversions, agents, conversions, finding, history, objects
from cache_service.servicer_branches import BranchServicer
from cache_service.servicer_tiers import TierServicer

Context = grpc.aio.ServicerContext[Any, Any]

MAX_PAGE_BYTES = 1 << 20
"""Of text, after which a page of turns ends."""
RETRY_SECONDS = 30.0
"""When to ask again for objects that could not be deleted yet."""


class AgentServicer(BranchServicer, TierServicer):
    """Reads and finds agents by their rows and deletes them for good. A namespace is what the worker says it is."""

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        key = AgentKey.from_proto(request.key)
        agent = await self._database.read(partial(agents.described, key=key))
        return pb.GetAgentResponse(agent=agent_conversions.agent_message(agent))

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        filters = agent_conversions.agent_filter(request)
        size = paging.asked_size(request)
        after = paging.pair(request.page_token)
        found = await self._database.read(partial(agents.page, key=filters, after=after, limit=size + 1))
        page, following = paging.cut(found, size, lambda agent: (agent.key.agent_id, agent.key.model_id))
        return pb.ListAgentsResponse(
            agents=[agent_conversions.agent_message(agent) for agent in page], next_page_token=following
        )

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        key = AgentKey.from_proto(request.key)
        size = paging.asked_size(request)
        after = paging.number(request.page_token)
        found = await self._database.read(partial(history.page, key=key, after=after, limit=size + 1))
        if request.include_text:
            ends = accumulate(len(entry.prompt) + len(entry.generated) for entry in found)
            size = min(size, max(1, sum(end <= MAX_PAGE_BYTES for end in ends)))
        page, following = paging.cut(found, size, lambda entry: (str(entry.id),))
        turns = [agent_conversions.turn_message(entry, text=request.include_text) for entry in page]
        return pb.ListTurnsResponse(turns=turns, next_page_token=following)

    async def FindAgent(self, request: pb.FindAgentRequest, context: Context) -> pb.FindAgentResponse:
        model_id = check_text("model_id", request.model_id)
        label = check_text("label", request.label, allow_empty=True)
        hashes = conversions.message_hashes(request.message_hashes)
        namespace = conversions.namespace(request.namespace)
        find = partial(finding.find, namespace=namespace, model_id=model_id, message_hashes=hashes, label=label)
        if request_id := conversions.request_id(request.request_id):
            if hashes or label:
                raise InvalidArgument("request_id", "stands alone: leave message_hashes and label empty")
            find = partial(finding.of_turn, namespace=namespace, model_id=model_id, request_id=request_id)
        found = await self._database.read(find)
        if found is None:
            return pb.FindAgentResponse()
        return pb.FindAgentResponse(
            agent=agent_conversions.agent_message(found.agent),
            matched_messages=found.messages,
            version=conversions.version_message(found.version),
        )

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: Context) -> pb.DeleteAgentResponse:
        key = AgentKey.from_proto(request.key, any_model=True)
        unfinished = await self._database.read(partial(objects.waiting, key=key))
        deleted = await self._blocks.delete_agent(key)
        if not deleted.agents and not unfinished and not request.allow_missing:
            raise NotFound("agent", key.agent_id)
        await self._objects_deleted(key)
        return pb.DeleteAgentResponse(deleted=deleted.agents, freed_bytes=deleted.freed_bytes)

    async def _objects_deleted(self, key: AgentKey) -> None:
        """Wait until nothing of the agent is in the object store. Raises Unavailable."""
        if self._replicator is not None:
            left, advice = await self._replicator.deleted(key), "they will be when it answers; repeat this to wait"
        else:
            left = await self._database.read(partial(objects.waiting, key=key))
            advice = "no object store is configured; start the store with the --remote that it had"
        if left:
            raise Unavailable(
                f"the agent is erased here, but {left} of its objects in the object store are not yet; {advice}",
                retry_after=RETRY_SECONDS,
            )
