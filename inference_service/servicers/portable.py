"""The streams of ExportAgent and ImportAgent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentmem.errors import AgentmemError, DeadlineExceeded, InvalidArgument, ResourceExhausted
from agentmem.kv.blockfile import CHUNK_BYTES
from agentmem.process.shielding import run_shielded
from agentmem.process.wire import drain
from agentmem.v1 import agent_pb2
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration, Calibrations
from inference_service.models.serving import Models
from inference_service.portable.exporting import Exporter
from inference_service.portable.format import Manifest, Parts
from inference_service.portable.importing import (
    RETRY_SECONDS,
    Importer,
    Received,
    check_fit,
    check_namespace,
    kv_misfit,
)
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister

AT_ONCE = 4
"""Each has one file of KV in memory."""

STALL_SECONDS = 60.0
"""An import may stall so long; it keeps others waiting."""

SMALL_CHUNKS, SMALL_BYTES = 1024, 1024
"""Fewer chunks may be smaller: each costs as much as a large one."""


@dataclass(eq=False, repr=False)
class PortableAgents:
    """An agent goes on while it is exported."""

    models: Models
    persister: Persister
    locks: AgentLocks
    exporter: Exporter
    importer: Importer
    calibrations: Calibrations
    _running: int = field(default=0, init=False)

    async def exported(self, key: AgentKey) -> AsyncGenerator[bytes]:
        with self._slot():
            async with self.models.use(key.model_id) as model, self.locks.hold(key):
                await self.persister.wait_written(key)
                export = await self.exporter.collect(key, model)
            async for chunk in export.chunks():
                yield chunk

    async def imported(self, requests: AsyncIterator[agent_pb2.ImportAgentRequest]) -> tuple[AgentKey, str]:
        """Create the agent that is sent, reading all also after an error; return its key, and why KV was not taken, or
        "".
        """
        try:
            return await self._import(_unstalled(requests))
        except AgentmemError:
            await drain(requests)
            raise

    async def _import(self, requests: AsyncIterator[agent_pb2.ImportAgentRequest]) -> tuple[AgentKey, str]:
        given = await _key(requests)
        if given.model_id:
            self.models.slot(given.model_id)
        with self._slot():
            parts = Parts(_chunks(requests))
            manifest = await parts.manifest()
            check_namespace(manifest, given.namespace)
            target = _target(given, manifest)
            if manifest.calibration:
                self.calibrations.offer(manifest.model_fingerprint, Calibration.of_bytes(manifest.calibration))
            async with self.models.use(target.model_id) as model:
                await asyncio.to_thread(check_fit, manifest, model)
                geometry = None if kv_misfit(manifest, model) else model.geometry
            await self.importer.check_absent(target)
            received = await self.importer.receive(parts, manifest, geometry)
            return target, await run_shielded(self._create(target, received))

    async def _create(self, target: AgentKey, received: Received) -> str:
        """Return why KV was not taken, or ""."""
        try:
            async with self.models.use(target.model_id) as model, self.locks.hold(target):
                await asyncio.to_thread(check_fit, received.manifest, model)  # The model may have changed meanwhile.
                await self.importer.create(target, model, received)
                return kv_misfit(received.manifest, model)
        finally:
            await self.importer.abandon(received)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Raises ResourceExhausted for too many at once."""
        if self._running >= AT_ONCE:
            raise ResourceExhausted(
                f"{self._running} agents are being exported or imported; try again when one is done", RETRY_SECONDS
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def _target(given: AgentKey, manifest: Manifest) -> AgentKey:
    """Complete the request's key by the file's, but for the namespace."""
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
    """Agent id and model id may be empty."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("part") != "key":
        raise InvalidArgument("key", "must come first, once; its namespace at least")
    return AgentKey.from_proto(first.key, anonymous=True, any_model=True)


async def _chunks(requests: AsyncIterator[agent_pb2.ImportAgentRequest]) -> AsyncIterator[bytes]:
    room = SMALL_CHUNKS
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise InvalidArgument("chunk", "must be all that follows the key")
        if len(request.chunk) > CHUNK_BYTES:
            raise InvalidArgument("chunk", f"must be at most {CHUNK_BYTES} bytes, is {len(request.chunk)}")
        room += len(request.chunk) // SMALL_BYTES - 1
        if room < 0:
            raise InvalidArgument("chunk", f"too many have less than {SMALL_BYTES} bytes; send {CHUNK_BYTES} at a time")
        yield request.chunk
