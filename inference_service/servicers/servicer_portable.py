"""Agents out of the worker and into it, as portable files."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agentmem.blockfile import CHUNK_BYTES
from agentmem.errors import AgentmemError, DeadlineExceeded, InvalidArgument
from agentmem.keys import AgentKey, check_text
from agentmem.shielding import to_its_end
from agentmem.uploads import read_on
from agentmem.v1 import agent_pb2
from inference_service.portable.format import Manifest
from inference_service.portable.importing import check_fit, check_namespace
from inference_service.portable.receiving import Received, receive
from inference_service.servicers.servicer_base import AgentServicerBase

STALL_SECONDS = 60.0
"""How long an import waits for the next piece; it keeps others from theirs."""


class PortableServicer(AgentServicerBase):
    """An export takes the agent's state behind its running turn and streams a copy; the agent goes on meanwhile."""

    async def ExportAgent(
        self, request: agent_pb2.ExportAgentRequest, context: Any
    ) -> AsyncIterator[agent_pb2.ExportAgentResponse]:
        key = AgentKey.from_proto(request.key)
        async with self._mover.spool.room():
            async with self._models.use(key.model_id) as model, self._holding(key):
                await self._persister.settle(key)
                exported = await self._mover.exporter.collect(key, model)
            try:
                async for chunk in exported.chunks():
                    yield agent_pb2.ExportAgentResponse(chunk=chunk)
            finally:
                exported.data.close()

    async def ImportAgent(
        self, request_iterator: AsyncIterator[agent_pb2.ImportAgentRequest], context: Any
    ) -> agent_pb2.ImportAgentResponse:
        try:
            target = await self._import(_unstalled(request_iterator))
        except AgentmemError:
            await read_on(request_iterator)
            raise
        response = await self._store.get_agent(agent_pb2.GetAgentRequest(key=target.to_proto()))
        self._complete(response.agent)
        return agent_pb2.ImportAgentResponse(agent=response.agent)

    async def _import(self, requests: AsyncIterator[agent_pb2.ImportAgentRequest]) -> AgentKey:
        """The agent that was created."""
        given = await _key(requests)
        if given.model_id:
            self._models.seat(given.model_id)

        async def judge(manifest: Manifest) -> None:
            check_namespace(manifest, given.namespace)
            target = _target(given, manifest)
            async with self._models.use(target.model_id) as model:
                await asyncio.to_thread(check_fit, manifest, model)
            await self._mover.importer.check_absent(target)

        async with self._mover.spool.room():
            received = await receive(_chunks(requests), self._mover.spool, judge)
            target = _target(given, received.manifest)
            await to_its_end(self._create(target, received))
        return target

    async def _create(self, target: AgentKey, received: Received) -> None:
        try:
            async with self._models.use(target.model_id) as model, self._holding(target):
                await asyncio.to_thread(check_fit, received.manifest, model)  # It may have gone and come meanwhile.
                await self._mover.importer.create(target, model, received)
        finally:
            received.data.close()


def _target(given: AgentKey, manifest: Manifest) -> AgentKey:
    """Which agent to create: what the request does not say is as in the file, but for the namespace."""
    return AgentKey(given.namespace, given.agent_id or manifest.key.agent_id, given.model_id or manifest.key.model_id)


async def _unstalled(
    requests: AsyncIterator[agent_pb2.ImportAgentRequest],
) -> AsyncIterator[agent_pb2.ImportAgentRequest]:
    while True:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                request = await anext(requests)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise DeadlineExceeded(f"no piece of the file came for {STALL_SECONDS:g} s; import it again") from error
        yield request


async def _key(requests: AsyncIterator[agent_pb2.ImportAgentRequest]) -> AgentKey:
    """The first message's key. Agent id and model id may be empty."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("part") != "key":
        raise InvalidArgument("key", "must come first, once; its namespace at least")
    return AgentKey(
        check_text("key.namespace", first.key.namespace),
        check_text("key.agent_id", first.key.agent_id, allow_empty=True),
        check_text("key.model_id", first.key.model_id, allow_empty=True),
    )


async def _chunks(requests: AsyncIterator[agent_pb2.ImportAgentRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise InvalidArgument("chunk", "must be all that follows the key")
        if len(request.chunk) > CHUNK_BYTES:
            raise InvalidArgument("chunk", f"must be at most {CHUNK_BYTES} bytes, is {len(request.chunk)}")
        yield request.chunk
