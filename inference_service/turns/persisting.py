"""Writing an agent's new KV after its turn, off the request path. Failures cost time later and nothing else."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from agentmem import logs
from agentmem.blockfile import BlockHeader
from agentmem.errors import AgentmemError
from agentmem.keys import AgentKey
from agentmem.v1 import cache_store_pb2
from inference_service.engine.geometry import Geometry
from inference_service.hot import HotState
from inference_service.memory.ledger import Version
from inference_service.metrics import WorkerMetrics
from inference_service.storage.blocks import write_block
from inference_service.storage.client import StoreClient

log = logging.getLogger(__name__)

Block = tuple[BlockHeader, dict[str, bytes]]
"""A block's header and a private copy of its tensors."""


class Persister:
    """Publishes blocks in the background, one turn after the other per worker. Event loop; files on other threads."""

    def __init__(self, store: StoreClient, metrics: WorkerMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    def publish(
        self,
        key: AgentKey,
        version: Version,
        state: HotState,
        blocks: Sequence[Block],
        references: Sequence[bytes],
        geometry: Geometry,
    ) -> None:
        """Write those of `blocks` that do not exist yet and publish them; `state.published` grows when it is done.

        `references` are all blocks that the agent's state consists of.
        """
        self._spawn(self._publish(key, version, state, blocks, references, geometry))

    async def flush(self) -> None:
        """Wait until everything is written."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(
        self,
        key: AgentKey,
        version: Version,
        state: HotState,
        blocks: Sequence[Block],
        references: Sequence[bytes],
        geometry: Geometry,
    ) -> None:
        started = time.monotonic()
        try:
            async with self._one_at_a_time:
                paths = await self._store.stage(key.namespace, [header.chain_hash for header, _ in blocks])
                files = [
                    await asyncio.to_thread(_write, paths[header.chain_hash], header, data, geometry)
                    for header, data in blocks
                    if header.chain_hash in paths
                ]
                fingerprint = blocks[0][0].fingerprint if blocks else ""
                await self._store.publish(key, version, files, references, fingerprint)
        except (AgentmemError, OSError) as error:
            self._metrics.store_failures.inc()
            logs.event(log, "blocks were not written; the ledger has the turn", logging.WARNING, error=str(error))
            return
        state.published = (state.published | {header.chain_hash for header, _ in blocks}) & frozenset(references)
        self._metrics.store_seconds.observe(time.monotonic() - started)
        self._metrics.store_bytes.inc(sum(file.size_bytes for file in files))


def _write(path: str, header: BlockHeader, data: dict[str, bytes], geometry: Geometry) -> cache_store_pb2.StoredFile:
    digest, size = write_block(path, header, data, geometry)
    return cache_store_pb2.StoredFile(
        chain_hash=header.chain_hash,
        kind=cache_store_pb2.FILE_KIND_BLOCK,
        path=path,
        digest=digest,
        size_bytes=size,
        first_token=header.first_token,
        token_count=header.token_count,
    )
