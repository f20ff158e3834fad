"""Files of KV from the store, every byte verified. A bad one is quarantined, and only a miss."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.process import logs
from agentmem.v1 import cache_store_pb2 as pb
from inference_service.engine.geometry import Geometry, HostTensors
from inference_service.memory.match import Reason
from inference_service.memory.speeds import Source, Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.storage.blocks import BlockMiss, read_bytes
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import Into, nowhere, read_all

log = logging.getLogger(__name__)


def source_of(file: pb.StoredFile) -> Source:
    return Source.NODE if file.on_node else Source.OBJECTS


@dataclass(eq=False, repr=False)
class Fetcher:
    """Brings and reads files. Event loop only; never raises for missing or bad ones."""

    _store: StoreClient
    _metrics: WorkerMetrics
    _speeds: Speeds

    async def bring(self, namespace: str, files: Mapping[FileName, pb.StoredFile]) -> dict[FileName, pb.StoredFile]:
        """Bring files from elsewhere to the store's disk, and time it; return those that came."""
        here: dict[FileName, pb.StoredFile] = {}
        for source in Source:
            if names := [name for name, file in files.items() if source_of(file) is source]:
                here |= await self._bring(namespace, source, {name: files[name] for name in names})
        return here

    async def _bring(
        self, namespace: str, source: Source, files: Mapping[FileName, pb.StoredFile]
    ) -> dict[FileName, pb.StoredFile]:
        began = time.monotonic()
        self._speeds.begin_fetch(source, began)
        try:
            here = await self._store.fetch(namespace, files)
        except AgentmemError as error:
            logs.event(log, "fetch failed", logging.WARNING, error=error.message)
            here = {}
        ended = time.monotonic()
        asked, came = (sum(files[name].size_bytes for name in names) for names in (files, here.keys() & files.keys()))
        self._speeds.end_fetch(source, asked, came, ended - began, ended)
        self._metrics.fetch_seconds.labels(source).observe(ended - began)
        self._metrics.fetch_bytes.labels(source).inc(came)
        return here

    async def read(
        self,
        geometry: Geometry,
        model_id: str,
        wanted: Sequence[tuple[BlockHeader, pb.StoredFile]],
        into: Into = nowhere,
    ) -> tuple[dict[FileName, HostTensors], dict[FileName, Reason]]:
        """Return good files, and faults of the others; see `read_all`."""
        results = await read_all(wanted, geometry, into) if wanted else []
        good: dict[FileName, HostTensors] = {}
        bad: dict[FileName, Reason] = {}
        for (header, file), result in zip(wanted, results, strict=True):
            name = FileName.of(header)
            if isinstance(result, BlockMiss):
                bad[name] = result.reason
                await self._refuse(model_id, header, file.digest, result)
            else:
                good[name] = result
        return good, bad

    async def read_bytes(
        self, geometry: Geometry, model_id: str, header: BlockHeader, file: pb.StoredFile
    ) -> memoryview | None:
        """Return a verified file; None if missing or bad."""
        try:
            return await asyncio.to_thread(read_bytes, file.path, header, file.digest, geometry)
        except BlockMiss as miss:
            await self._refuse(model_id, header, file.digest, miss)
            return None

    async def _refuse(self, model_id: str, header: BlockHeader, digest: bytes, miss: BlockMiss) -> None:
        namespace, name = header.namespace, FileName.of(header)
        self._metrics.load_failures.labels(model_id, miss.fault).inc()
        logs.event(log, "block refused", logging.WARNING, fault=miss.fault, chain_hash=name.chain_hash.hex())
        if not miss.damaged:
            return
        try:
            await self._store.quarantine(namespace, name, digest, miss.fault)
        except AgentmemError as error:
            logs.event(log, "quarantine failed", logging.WARNING, error=error.message)
