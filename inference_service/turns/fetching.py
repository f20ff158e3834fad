"""Files of KV from the store, every byte verified. What fails is taken out of use, and is only a miss."""

import logging
from collections.abc import Collection, Sequence

from agentmem import logs
from agentmem.blockfile import BlockHeader
from agentmem.errors import AgentmemError
from agentmem.identity import FileName
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, HostTensors
from inference_service.engine.preallocating import PreallocatedBuffers
from inference_service.memory.match import Reason
from inference_service.memory.restore import Place
from inference_service.metrics import WorkerMetrics
from inference_service.storage.blocks import BlockMiss
from inference_service.storage.client import NOTHING, Opened, StoreClient
from inference_service.storage.transport import TransportSelector

log = logging.getLogger(__name__)


class Fetcher:
    """Looks for files and reads them, by path or stream. Event loop only; never raises for what is missing or bad."""

    def __init__(self, store: StoreClient, transports: TransportSelector, metrics: WorkerMetrics) -> None:
        self._store = store
        self._transports = transports
        self._metrics = metrics

    async def look(
        self, turn_of: AgentKey, blocks: Collection[bytes], windows: Collection[bytes], peek: bool
    ) -> tuple[Opened, Reason]:
        """Which of these files exist, for a turn of this agent; and why there is nothing to be said, if the store does
        not answer.
        """
        if not (blocks or windows):
            return NOTHING, types_pb2.MISS_REASON_UNSPECIFIED
        nobody = turn_of._replace(agent_id="")
        try:
            opened = await self._store.open(
                nobody, block_hashes=blocks, window_hashes=windows, peek=peek, turn_agent_id=turn_of.agent_id
            )
        except AgentmemError as error:
            logs.event(log, "block lookup failed", logging.WARNING, error=error.message)
            return NOTHING, types_pb2.MISS_REASON_IO_ERROR
        return opened, types_pb2.MISS_REASON_UNSPECIFIED

    async def look_by_tokens(self, namespace: str, fingerprint: str, place: Place, peek: bool) -> pb.StoredFile | None:
        """Which file shares most with what goes on at `place`; None if none does, or the store does not answer."""
        try:
            return await self._store.find_block(namespace, fingerprint, place.parent, place.token_ids, peek)
        except AgentmemError as error:
            logs.event(log, "block lookup failed", logging.WARNING, error=error.message)
            return None

    async def bring(self, namespace: str, names: Sequence[FileName]) -> dict[FileName, pb.StoredFile]:
        """Bring files from the object store to the store's disk; those that are there now. The others are misses."""
        try:
            return await self._store.fetch(namespace, names)
        except AgentmemError as error:
            logs.event(log, "fetch failed", logging.WARNING, error=error.message)
            return {}

    async def read(
        self,
        geometry: Geometry,
        namespace: str,
        model_id: str,
        wanted: Sequence[tuple[BlockHeader, pb.StoredFile]],
        into: PreallocatedBuffers | None = None,
    ) -> tuple[dict[FileName, HostTensors], dict[FileName, Reason]]:
        """The good ones of these files, and what is wrong with the others; see Transport.read_all."""
        if not wanted:
            return {}, {}
        try:
            transport = await self._transports.current()
        except AgentmemError as error:
            logs.event(log, "block files are out of reach", logging.WARNING, error=error.message)
            return {}, {FileName.of(header): types_pb2.MISS_REASON_IO_ERROR for header, _ in wanted}
        results = await transport.read_all(wanted, geometry, into)
        good: dict[FileName, HostTensors] = {}
        bad: dict[FileName, Reason] = {}
        for (header, file), result in zip(wanted, results, strict=True):
            name = FileName.of(header)
            if isinstance(result, BlockMiss):
                bad[name] = result.reason
                self._metrics.load_failures.labels(model_id, result.fault).inc()
                await self._refuse(namespace, name, file.digest, result)
            else:
                good[name] = result
        return good, bad

    async def _refuse(self, namespace: str, name: FileName, digest: bytes, miss: BlockMiss) -> None:
        logs.event(log, "block refused", logging.WARNING, fault=miss.fault, chain_hash=name.chain_hash.hex())
        if not miss.damaged:
            return
        try:
            await self._store.quarantine(namespace, name, digest, miss.fault)
        except AgentmemError as error:
            logs.event(log, "quarantine failed", logging.WARNING, error=error.message)
