"""Responses that are kept as turns of agents."""

import asyncio
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentmem.errors import FailedPrecondition
from agentmem.v1 import agent_pb2, model_pb2
from agentmem.words import is_conversation
from gateway.api.kept_responses import kept_body, kept_input, references, resolved, response_of
from gateway.api.responses import beginning_of, not_kept
from gateway.api.responses_schema import ResponseRequest
from gateway.edge.callers import caller
from gateway.worker import Worker

_PAGE = 100


class Kept(NamedTuple):
    agent: agent_pb2.Agent
    turn: agent_pb2.Turn


class KeptResponses:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def serve(self, request: Request) -> Response:
        """Serve /v1/responses/{id} and what is under it."""
        identifier, _, part = request.path_params["id"].partition("/")
        match request.method, part:
            case "GET", "":
                agent, turn = await self.get(identifier)
                return JSONResponse(kept_body(identifier, agent.key, turn))
            case "GET", "input_items":
                return JSONResponse(kept_input(identifier, (await self.get(identifier)).turn))
            case "DELETE", "":
                await self.delete(identifier)
                return JSONResponse({"id": identifier, "object": "response", "deleted": True})
        raise HTTPException(404, "of a response there are GET, DELETE and GET …/input_items")

    async def get(self, identifier: str) -> Kept:
        """Raises NotFound."""
        models: list[str] = []
        if beginning_of(identifier) is not None:
            listed: model_pb2.ListModelsResponse = await self._worker.call(model_pb2.ListModelsRequest(page_size=1000))
            models = [model.model_id for model in listed.models]
        for model in models:
            if (agent := await self._agent(model, identifier)) is not None:
                turns = await self._turns(agent)
                if (turn := turns.get(identifier)) is not None:
                    return Kept(agent, turn)
        raise not_kept("response", identifier)

    async def delete(self, identifier: str) -> None:
        """Trim an agent by the turn that a response is; an unnamed one without anything else is deleted.

        Raises NotFound, and FailedPrecondition where others follow it.
        """
        agent, turn = await self.get(identifier)
        if turn.first_token + turn.tokens < agent.tokens:
            raise FailedPrecondition(
                "later turns go on from this response; delete those first, or the agent with DELETE /v1/agents/"
                f"{agent.key.agent_id}"
            )
        version = agent.version
        trim = agent_pb2.TrimAgentRequest(
            key=agent.key, keep_tokens=turn.first_token, if_version=version.version, if_revision=version.revision
        )
        await self._worker.call(trim)
        # Nothing has come meanwhile, or it was refused.
        if turn.first_token == 0 and is_conversation(agent.key.agent_id):
            await self._worker.call(agent_pb2.DeleteAgentRequest(key=agent.key))

    async def resolve(self, request: ResponseRequest) -> ResponseRequest:
        """Raises NotFound."""
        found: dict[str, agent_pb2.Turn] = {}
        # The last one's agent has most of the conversation.
        for identifier in dict.fromkeys(response_of(item) for item in reversed(references(request))):
            if identifier not in found:
                agent = await self._agent(request.model or "", identifier)
                found |= await self._turns(agent) if agent is not None else {}
            if identifier not in found:
                raise not_kept("item", next(i for i in references(request) if response_of(i) == identifier))
        return await asyncio.to_thread(resolved, request, found)

    async def _agent(self, model: str, identifier: str) -> agent_pb2.Agent | None:
        asked = agent_pb2.FindAgentRequest(namespace=caller().namespace, model_id=model, request_id=identifier)
        found: agent_pb2.FindAgentResponse = await self._worker.call(asked)
        return found.agent if found.HasField("agent") else None

    async def _turns(self, agent: agent_pb2.Agent) -> dict[str, agent_pb2.Turn]:
        turns: dict[str, agent_pb2.Turn] = {}
        asked = agent_pb2.ListTurnsRequest(key=agent.key, page_size=_PAGE, include_text=True)
        while True:
            page: agent_pb2.ListTurnsResponse = await self._worker.call(asked)
            turns |= {turn.request_id: turn for turn in page.turns if turn.request_id and not turn.cut}
            asked.page_token = page.next_page_token
            if not asked.page_token:
                return turns
