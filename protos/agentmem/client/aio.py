from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agentmem.channels import ClientTls
from agentmem.client import inputs
from agentmem.client.agent import AsyncAgent
from agentmem.client.connection import PATIENCE, Connection, OnOutage, Within, pages
from agentmem.client.inputs import UNSET, Beginning, Policy, Said, Seconds, Timeout
from agentmem.client.models import AsyncModels
from agentmem.client.records import AgentInfo, Imported, TokenCount
from agentmem.client.transfers import Target, opened, pieces
from agentmem.client.workflows import AsyncWorkflows
from agentmem.errors import Unavailable
from agentmem.rpcs import rpc_of
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2


class AsyncClient:
    """A client of one gateway, for one event loop, with the parameters of `Client`; `async with` closes it."""

    def __init__(
        self,
        gateway: str = "",
        *,
        key: str | None = None,
        tls: bool | ClientTls | None = None,
        timeout: float | None = None,
        patience: float = PATIENCE,
        on_outage: OnOutage | None = None,
    ) -> None:
        self.connection = Connection(gateway, key, tls, timeout, patience, on_outage)
        self.models = AsyncModels(self.connection)
        self.workflows = AsyncWorkflows(self.connection)
        self._default_model = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.connection.gateway!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Running calls raise Cancelled."""
        await self.connection.close()

    def agent(
        self,
        name: str,
        *,
        model: str = "",
        system: str = "",
        ttl: Seconds | None = None,
        delete_after: Seconds | None = None,
        context_policy: Policy | None = None,
    ) -> AsyncAgent:
        """Return an agent on a `model`, or the gateway's default. With an empty name no turn is kept.

        The other arguments apply to its first turn: `system` message, idle times until its KV is dropped (`ttl`) and it
        is deleted, context policy. A turn raises FailedPrecondition if the memory has another system message.
        """
        return AsyncAgent(self, name, model, Beginning(system, ttl, delete_after, context_policy))

    async def agents(self, *, name: str = "", model: str = "", timeout: Timeout = UNSET) -> AsyncIterator[AgentInfo]:
        """Yield all agents, those of a `model`, or the memories of one `name`."""
        request = agent_pb2.ListAgentsRequest(agent_id=name, model_id=model)
        async with aclosing(pages(self.connection, request, "agents", AgentInfo.of, timeout)) as found:
            async for agent in found:
                yield agent

    async def import_agent(
        self, file: Target, *, name: str = "", model: str = "", timeout: Timeout = UNSET
    ) -> Imported:
        """Make an agent from an exported file; name and model default to the file's.

        Raises AlreadyExists, also if the answer to this call was lost; DataLoss for a damaged file; FailedPrecondition
        for another model's; OSError; Unavailable after an outage if the file cannot be read again.
        """
        key = types_pb2.AgentKey(agent_id=name, model_id=model)
        call = rpc_of(agent_pb2.ImportAgentRequest()).on(self.connection.channel)
        with opened(file) as source:
            start = source.tell() if source.seekable() else 0
            sent = False
            failed: list[Exception] = []

            async def sending() -> AsyncIterator[agent_pb2.ImportAgentRequest]:
                try:
                    async for piece in pieces(source, key, start):
                        yield piece
                except Exception as error:  # gRPC would cancel the call without this error
                    failed.append(error)
                    raise

            async def attempt(seconds: float | None) -> Any:
                nonlocal sent
                if sent and not source.seekable():
                    raise Unavailable("the connection was lost, and the file cannot be read again")
                sent = True
                try:
                    return await call(sending(), timeout=seconds)
                except asyncio.CancelledError:
                    if failed:
                        raise failed[0] from None
                    raise

            answer = await self.connection.run(attempt, timeout)
        return Imported(AgentInfo.of(answer.agent), answer.kv_misfit)

    async def count_tokens(
        self,
        said: Said,
        *,
        model: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
        timeout: Timeout = UNSET,
    ) -> TokenCount:
        """Return how many tokens a whole chat has, generation prompt included."""
        deadline = self.connection.deadline(timeout)
        request = inference_pb2.CountTokensRequest(
            key=types_pb2.AgentKey(model_id=model or await self.default_model(deadline)),
            messages=inputs.chat_of(said, tools=tools, template_arguments=template_arguments),
        )
        counted = await self.connection.call(request, deadline)
        return TokenCount(counted.tokens, counted.context_length)

    async def hint(self, steps: Mapping[str, int | None], *, model: str = "", timeout: Timeout = UNSET) -> None:
        """Say in how many steps agents speak next, None for not again, to guide eviction.

        Steps do not count down: send all hints after each turn.
        """
        deadline = self.connection.deadline(timeout)
        model_id = model or await self.default_model(deadline)
        hints = [
            agent_pb2.TurnHint(key=types_pb2.AgentKey(agent_id=name, model_id=model_id), steps=count)
            for name, count in steps.items()
        ]
        await self.connection.call(agent_pb2.SetTurnHintsRequest(hints=hints), deadline)

    async def abort(self, request_id: str, *, timeout: Timeout = UNSET) -> bool:
        """End the turn with this request_id. Return whether there was one."""
        request = inference_pb2.AbortRequest(request_id=request_id)
        aborted: bool = (await self.connection.call(request, timeout)).aborted
        return aborted

    async def default_model(self, timeout: Within = UNSET) -> str:
        if not self._default_model:
            self._default_model = (await self.models.get(timeout=timeout)).name
        return self._default_model
