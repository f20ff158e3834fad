"""Brings an agent's KV into the pool before its turn."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from agentmem.errors import NotFound, ResourceExhausted
from agentmem.kv.ledger import NO_VERSION, Ledger, Version
from agentmem.process.shielding import run_shielded
from agentmem.validation import AgentKey
from inference_service.engine.thread import EngineThread
from inference_service.memory.restore import Lookup, headers
from inference_service.metrics import WorkerMetrics
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import MemoryRequest, Reservation
from inference_service.pool.hot import HotState
from inference_service.storage.client import StoreClient
from inference_service.threads import WorkerThreads
from inference_service.turns.planning import opened
from inference_service.turns.pool_writer import PoolWriter
from inference_service.turns.restoring import Restorer, kv_lookup

_NEXT = 0
"""A new token, before which all of the ledger can be reused."""


class Prefetched(NamedTuple):
    """The agent's tokens in the pool, and bytes read for them."""

    tokens: int
    load_bytes: int


@dataclass(eq=False, repr=False)
class Prefetcher:
    """Event loop only, under the agent's lock."""

    engine: EngineThread
    threads: WorkerThreads
    store: StoreClient
    restorer: Restorer
    pool_writer: PoolWriter
    metrics: WorkerMetrics

    async def prefetch(self, key: AgentKey, model: LoadedModel) -> Prefetched:
        """Bring KV as far as there is memory now, and mark the agent as the last used. KV of another tokenizer is left.
        Raises NotFound, and FailedPrecondition if an empty pool would be too small.
        """
        memory, agent = model.memory, await opened(self.store, model, key)
        if agent.version == NO_VERSION:
            raise NotFound("agent", key.agent_id)
        ledger = agent.ledger or Ledger()
        if not len(ledger) or ledger.tokenizer_hash != model.tokenizer.hash:
            return Prefetched(0, 0)
        if (hot := memory.hot.get(key)) is not None and hot.table.tokens == len(ledger):
            memory.hot.touch(key)
            return Prefetched(len(ledger), 0)
        sequence = np.append(ledger.token_ids, np.uint32(_NEXT))
        lookup = await self.threads.plan(lambda: kv_lookup(key.namespace, model, ledger, len(ledger), sequence))
        lookup = replace(lookup, incompatible=agent.is_incompatible(model.fingerprint))
        found = await self.restorer.probe(key, model, lookup, ahead=True)
        held = hot.table.tokens if (hot := memory.hot.get(key)) is not None else 0
        if found.tokens <= held:  # Evict nobody for nothing.
            return Prefetched(held, 0)
        with memory.reserve_now(MemoryRequest(key, lookup.own, found.tokens, computes=False)) as given:
            if given is None:
                return Prefetched(held, 0)
            return await self._load(key, model, agent.version, ledger, lookup, given)

    async def _load(
        self,
        key: AgentKey,
        model: LoadedModel,
        version: Version,
        ledger: Ledger,
        lookup: Lookup,
        reservation: Reservation,
    ) -> Prefetched:
        held = reservation.hot.table.tokens if reservation.hot is not None else 0
        try:
            restored = await self.restorer.find(key, model, lookup, reservation, ahead=True)
        except ResourceExhausted:
            return Prefetched(held, 0)
        tokens = restored.tokens
        if not held < tokens <= reservation.tokens:  # More files than a moment ago are for the next turn.
            return Prefetched(held, 0)
        began = time.monotonic()
        try:
            kv = await run_shielded(self.engine.call(restored.sequence))
        except MemoryError:
            return Prefetched(held, 0)
        if restored.load_bytes:
            seconds = restored.read_seconds + time.monotonic() - began
            self.metrics.load_seconds.labels(model.model_id).observe(seconds)
        ids = model.fingerprint, key.namespace, ledger.token_ids[:tokens]
        blocks = await self.threads.plan(lambda: list(headers(*ids)))
        table = await self.pool_writer.write(model, reservation, kv, ledger.token_ids[:tokens], blocks)
        model.memory.hot.put(key, HotState(version, ledger, table, restored.stored_windows()))
        reservation.superseded = True
        return Prefetched(tokens, restored.load_bytes)
