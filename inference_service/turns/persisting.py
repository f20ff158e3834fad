"""Writing an agent's new KV after its turn, off the request path. Failures cost time later and nothing else."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable, Sequence

from agentmem.blockfile import BlockHeader
from agentmem.errors import AgentmemError
from agentmem.keys import AgentKey
from agentmem.v1 import cache_store_pb2
from inference_service.engine.geometry import Geometry
from inference_service.hot import HotState
from inference_service.memory.ledger import Version
from inference_service.metrics import WorkerMetrics
from inference_service.storage.blocks import write_block
from inference_service.storage.client import FileName, StoreClient

log = logging.getLogger(__name__)

MAX_PENDING_BYTES = 1 << 30
"""Copies of blocks that may wait to be written."""

Block = tuple[BlockHeader, dict[str, bytes]]
"""A block's header and a private copy of its tensors."""


class Persister:
    """Publishes blocks in the background, one turn after the other per worker. Event loop; files on other threads."""

    def __init__(self, store: StoreClient, metrics: WorkerMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._pending_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether copies of more blocks may be made. When a disk is too slow, later turns' KV is written later."""
        return self._pending_bytes < MAX_PENDING_BYTES

    def publish(
        self,
        key: AgentKey,
        version: Version,
        state: HotState,
        blocks: Sequence[Block],
        references: Sequence[bytes],
        geometry: Geometry,
    ) -> None:
        """Write those of `blocks` that do not exist yet and publish them.

        They count as published at once, and no longer if it fails. `references` are all blocks that the agent's state
        consists of.
        """
        names = frozenset(header.chain_hash for header, _ in blocks)
        size = sum(len(tensor) for _, tensors in blocks for tensor in tensors.values())
        state.published = (state.published | names) & frozenset(references)
        self._pending_bytes += size
        task = asyncio.create_task(self._publish(key, version, blocks, references, geometry))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._done(task, state, names, size))

    async def flush(self, seconds: float) -> None:
        """Wait until everything is written, at most so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _done(self, task: "asyncio.Task[None]", state: HotState, names: frozenset[bytes], size: int) -> None:
        self._tasks.discard(task)
        self._pending_bytes -= size
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            state.published -= names
            self._metrics.store_failures.inc()
        if error is not None:
            known = isinstance(error, AgentmemError | OSError)
            message = "blocks were not written; the ledger has the turn"
            log.warning("%s: %s", message, error, exc_info=None if known else error)

    async def _publish(
        self,
        key: AgentKey,
        version: Version,
        blocks: Sequence[Block],
        references: Sequence[bytes],
        geometry: Geometry,
    ) -> None:
        started = time.monotonic()
        async with self._one_at_a_time:
            paths = await self._store.stage(key.namespace, [FileName.of(header) for header, _ in blocks])
            published = False
            try:
                files = [
                    await asyncio.to_thread(_write, paths[FileName.of(header)], header, data, geometry)
                    for header, data in blocks
                    if FileName.of(header) in paths
                ]
                fingerprint = blocks[0][0].fingerprint if blocks else ""
                names = [FileName.block(chain_hash) for chain_hash in references]
                await self._store.publish(key, version, files, names, fingerprint)
                published = True
            finally:
                if not published:
                    await asyncio.to_thread(_remove, paths.values())
        self._metrics.store_seconds.observe(time.monotonic() - started)
        self._metrics.store_bytes.inc(sum(file.size_bytes for file in files))


def _remove(paths: Iterable[str]) -> None:
    """What was staged and not published would take up a disk that may be full already."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _write(path: str, header: BlockHeader, data: dict[str, bytes], geometry: Geometry) -> cache_store_pb2.StoredFile:
    digest, size = write_block(path, header, data, geometry)
    return cache_store_pb2.StoredFile(
        chain_hash=header.chain_hash,
        kind=FileName.of(header).kind,
        path=path,
        digest=digest,
        size_bytes=size,
        first_token=header.first_token,
        token_count=header.token_count,
    )
