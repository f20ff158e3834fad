"""AgentService on the worker: the store's half, behind the agent's running turn and with what memory knows."""

from typing import Any

from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2
from inference_service.memory.ledger import NO_VERSION
from inference_service.servicers.requests import probe_request
from inference_service.servicers.servicer_branches import BranchServicer
from inference_service.servicers.servicer_portable import PortableServicer
from inference_service.servicers.servicer_tiers import TierServicer
from inference_service.storage.client import version_to_proto
from inference_service.turns.preparing import check_tokens


class AgentServicer(BranchServicer, TierServicer, PortableServicer):
    """Reading, probing and deleting agents, their branches, tiers and files; other RPCs answer UNIMPLEMENTED."""

    async def GetAgent(self, request: agent_pb2.GetAgentRequest, context: Any) -> agent_pb2.GetAgentResponse:
        AgentKey.from_proto(request.key)
        response = await self._store.get_agent(request)
        self._complete(response.agent)
        return response

    async def ListAgents(self, request: agent_pb2.ListAgentsRequest, context: Any) -> agent_pb2.ListAgentsResponse:
        response = await self._store.list_agents(request)
        for agent in response.agents:
            self._complete(agent)
        return response

    async def ListTurns(self, request: agent_pb2.ListTurnsRequest, context: Any) -> agent_pb2.ListTurnsResponse:
        AgentKey.from_proto(request.key)
        return await self._store.list_turns(request)

    async def FindAgent(self, request: agent_pb2.FindAgentRequest, context: Any) -> agent_pb2.FindAgentResponse:
        response = await self._store.find_agent(request)
        if response.HasField("agent"):
            self._complete(response.agent)
        return response

    async def ProbeAgent(self, request: agent_pb2.ProbeAgentRequest, context: Any) -> agent_pb2.ProbeAgentResponse:
        probe = probe_request(request)
        async with self._models.hold(probe.key.model_id) as model:
            check_tokens(probe.input, model)
            hot = model.memory.hot.get(probe.key)
            opened = await self._store.open(probe.key, hot.version if hot is not None else NO_VERSION, peek=True)
            known = hot.ledger if hot is not None and hot.version == opened.version else None
            prepared = await self._preparer.probe(probe, model, opened, known)
        return agent_pb2.ProbeAgentResponse(
            cache=prepared.report,
            version=version_to_proto(opened.version),
            context_trim=prepared.context_trim(commits=probe.commits),
        )

    async def DeleteAgent(self, request: agent_pb2.DeleteAgentRequest, context: Any) -> agent_pb2.DeleteAgentResponse:
        key = AgentKey.from_proto(request.key, any_model=True)
        keys = [key] if key.model_id else await self._on_all_models(key)
        async with self._holding(*keys):
            for each in keys:
                await self._persister.forget(each)  # or what is erased would be written once more
                self._drop_hot(each)
            return await self._store.delete_agent(request)

    async def _on_all_models(self, key: AgentKey) -> list[AgentKey]:
        request = agent_pb2.ListAgentsRequest(namespace=key.namespace, agent_id=key.agent_id, page_size=1000)
        response = await self._store.list_agents(request)
        return [key._replace(model_id=agent.key.model_id) for agent in response.agents]
