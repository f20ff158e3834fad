"""Finding the KV that a plan can reuse: hot, else from disk, else none. What fails verification is only a miss."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentmem import logs
from agentmem.blockfile import BLOCK_TOKENS
from agentmem.errors import AgentmemError
from agentmem.keys import AgentKey
from agentmem.v1 import cache_store_pb2, types_pb2
from inference_service.engine import tensors
from inference_service.engine.geometry import Caches
from inference_service.engine.loading import LoadedModel
from inference_service.engine.tensors import HostTensors
from inference_service.hot import HotState
from inference_service.memory.ledger import Ledger
from inference_service.memory.match import Reason, common_tokens
from inference_service.memory.plan import Plan
from inference_service.memory.restore import Candidate, look_up
from inference_service.metrics import WorkerMetrics
from inference_service.storage.blocks import BlockMiss, read_block
from inference_service.storage.client import FileName, StoreClient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reuse:
    """KV to start from: `tokens` of it, from `tier`. `caches` makes them, once, on the engine thread.

    `published` are blocks of it that are known to be on disk; `reason` says why there is not more.
    """

    tokens: int
    tier: types_pb2.Tier.ValueType
    caches: Callable[[], Caches]
    reason: Reason = types_pb2.MISS_REASON_UNSPECIFIED
    published: frozenset[bytes] = frozenset()
    load_bytes: int = 0
    load_seconds: float = 0.0


class Restorer:
    """Decides and loads. Event loop; files are read on other threads."""

    def __init__(self, store: StoreClient, metrics: WorkerMetrics, min_tokens: int) -> None:
        self._store = store
        self._metrics = metrics
        self._min_tokens = min_tokens

    def from_hot(self, model: LoadedModel, hot: HotState, plan: Plan) -> Reuse:
        """Reuse the hot state, as far as its ledger and the plan agree; sliding layers cannot always go back."""
        tokens = min(common_tokens(hot.ledger.token_ids, plan.sequence), len(plan.sequence) - 1)
        if not all(cache.can_trim(cache.offset - tokens) for cache in hot.caches):
            return self._none(model, types_pb2.MISS_REASON_NOT_TRIMMABLE)

        def caches() -> Caches:
            for cache in hot.caches:
                cache.trim(cache.offset - tokens)
            return hot.caches

        return Reuse(tokens, types_pb2.TIER_HOT if tokens else types_pb2.TIER_NONE, caches, published=hot.published)

    async def from_disk(self, key: AgentKey, model: LoadedModel, ledger: Ledger, plan: Plan) -> Reuse:
        """Reuse the longest gapless run of good blocks. Never raises for what is missing or bad: that is a miss."""
        if model.geometry.sliding is not None:
            kept = bool(plan.keep_tokens)
            return self._none(model, types_pb2.MISS_REASON_NOT_TRIMMABLE if kept else types_pb2.MISS_REASON_ABSENT)
        started = time.monotonic()
        lookup = look_up(model.fingerprint, key.namespace, ledger.token_ids, plan.keep_tokens, plan.sequence)
        if not lookup.candidates:
            return self._none(model, types_pb2.MISS_REASON_ABSENT)
        try:
            opened = await self._store.open(key._replace(agent_id=""), block_hashes=lookup.hashes())
        except AgentmemError as error:
            logs.event(log, "block lookup failed", logging.WARNING, error=error.message)
            return self._none(model, types_pb2.MISS_REASON_IO_ERROR)
        chosen = lookup.choose(opened.files)
        missing = lookup.missing(opened.files)
        reason: Reason = types_pb2.MISS_REASON_UNSPECIFIED
        if missing:
            dropped = not opened.evicted.isdisjoint(missing)
            reason = types_pb2.MISS_REASON_EVICTED if dropped else types_pb2.MISS_REASON_ABSENT
        if 0 < sum(candidate.usable_tokens for candidate in chosen) < self._min_tokens:
            return self._none(model, types_pb2.MISS_REASON_BELOW_MIN)
        files = [opened.files[candidate.header.chain_hash] for candidate in chosen]
        loaded, miss = await self._load(model, chosen, files)
        if miss is not None:
            reason = miss.reason
            bad = chosen[len(loaded)]
            logs.event(log, "block refused", logging.WARNING, fault=miss.fault, chain_hash=bad.header.chain_hash.hex())
            self._metrics.load_failures.labels(miss.fault).inc()
            if miss.damaged:
                await self._quarantine(key.namespace, bad, miss.fault)
        if not loaded:
            return self._none(model, reason)
        tokens = sum(candidate.usable_tokens for candidate in chosen[: len(loaded)])
        capacity = (tokens // BLOCK_TOKENS + 1) * BLOCK_TOKENS
        blocks = [(data, candidate.usable_tokens) for data, candidate in zip(loaded, chosen, strict=False)]
        buffers = [await asyncio.to_thread(tensors.assemble, blocks, capacity)]
        size = sum(file.size_bytes for file in files[: len(loaded)])
        seconds = time.monotonic() - started
        self._metrics.load_bytes.inc(size)
        return Reuse(
            tokens,
            types_pb2.TIER_WARM,
            lambda: tensors.restore(buffers.pop(), tokens, model.geometry),
            reason,
            frozenset(candidate.header.chain_hash for candidate in chosen[: len(loaded)]),
            size,
            seconds,
        )

    def nothing(self, model: LoadedModel) -> Reuse:
        """Compute everything, because the request asks for it."""
        return self._none(model, types_pb2.MISS_REASON_UNSPECIFIED)

    def _none(self, model: LoadedModel, reason: Reason) -> Reuse:
        return Reuse(0, types_pb2.TIER_NONE, model.new_caches, reason)

    async def _load(
        self, model: LoadedModel, chosen: Sequence[Candidate], files: Sequence[cache_store_pb2.StoredFile]
    ) -> tuple[list[HostTensors], BlockMiss | None]:
        """The blocks up to the first bad one, and what is wrong with that."""
        results = await asyncio.gather(
            *(
                asyncio.to_thread(read_block, file.path, candidate.header, file.digest, model.geometry)
                for candidate, file in zip(chosen, files, strict=True)
            ),
            return_exceptions=True,
        )
        loaded: list[HostTensors] = []
        for result in results:
            if isinstance(result, BlockMiss):
                return loaded, result
            if isinstance(result, BaseException):
                raise result
            loaded.append(result)
        return loaded, None

    async def _quarantine(self, namespace: str, bad: Candidate, fault: str) -> None:
        try:
            await self._store.quarantine(namespace, FileName.of(bad.header), fault)
        except AgentmemError as error:
            logs.event(log, "quarantine failed", logging.WARNING, error=error.message)
