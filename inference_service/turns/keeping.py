"""What becomes of a turn's KV after its end: kept hot and written, put back as it was, or dropped.

Whatever goes wrong here costs time later and nothing else: the ledger has the turn, or never had it.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from agentmem.errors import AgentmemError
from agentmem.keys import AgentKey
from inference_service.engine.generation import CacheLengthError, Generated, check_lengths, settle
from inference_service.engine.geometry import Caches
from inference_service.engine.loading import LoadedModel
from inference_service.engine.tensors import extract_block
from inference_service.engine.thread import EngineThread
from inference_service.hot import HotAgents, HotState
from inference_service.memory.ledger import Version
from inference_service.memory.restore import headers
from inference_service.metrics import WorkerMetrics
from inference_service.turns.persisting import Block, Persister
from inference_service.turns.preparing import Prepared

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Keeper:
    """Keeps the KV of turns. Event loop only; call it under the agent's lock."""

    def __init__(self, engine: EngineThread, hot: HotAgents, persister: Persister, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._hot = hot
        self._persister = persister
        self._metrics = metrics

    async def keep(
        self,
        key: AgentKey,
        version: Version,
        model: LoadedModel,
        prepared: Prepared,
        caches: Caches,
        generated: Generated,
    ) -> None:
        """Bring the caches to exactly the ledger, keep them hot, and have their new blocks written."""
        sequence = (*prepared.plan.sequence, *generated.token_ids)
        published = prepared.hot.published if prepared.hot is not None else prepared.reuse.published
        blocks = list(headers(model.fingerprint, key.namespace, sequence))
        # Without a window no position of a hybrid model can be resumed from disk, so its blocks are not written.
        writes = model.geometry.sliding is None and self._persister.has_room
        new = [header for header in blocks if writes and header.chain_hash not in published]

        def copy() -> list[Block]:
            check_lengths(caches, len(sequence))
            return [
                (header, extract_block(caches, model.geometry, header.first_token, header.token_count))
                for header in new
            ]

        copies = await self._settled(copy)
        if copies is None:
            return
        ledger = prepared.ledger.kept(prepared.keep_tokens)
        added = sequence[len(ledger) :]
        pieces, generated_tokens = model.tokenizer.pieces(added), len(generated.token_ids)
        ledger = ledger.followed_by(added, pieces, model.tokenizer.hash, generated_tokens)
        state = prepared.hot or HotState(version, ledger, caches, published)
        state.version, state.ledger, state.caches = version, ledger, caches
        self._put(key, state)
        references = [header.chain_hash for header in blocks]
        self._persister.publish(key, version, state, copies, references, model.geometry)

    async def roll_back(self, key: AgentKey, prepared: Prepared) -> None:
        """Put the hot state back as it was where the turn only went on from its ledger; else let it go."""
        hot = prepared.hot
        if hot is None or prepared.keep_tokens < len(hot.ledger):
            return

        def trim() -> Caches:
            settle(hot.caches, len(hot.ledger))
            return hot.caches

        if hot.caches and await self._settled(trim):
            self._put(key, hot)

    async def _settled(self, work: Callable[[], _T]) -> _T | None:
        """What `work` gives on the engine thread; None, and a line in the log, where it fails: KV is only dropped."""
        if not self._engine.alive:
            return None
        future = self._engine.submit(work)
        await self._engine.wait(future)
        if error := future.exception():
            known = isinstance(error, AgentmemError | CacheLengthError)
            log.warning("KV was dropped after a turn: %s", error, exc_info=None if known else error)
            return None
        return future.result()

    def _put(self, key: AgentKey, state: HotState) -> None:
        if dropped := self._hot.put(key, state):
            self._metrics.evictions.labels("hot", "capacity").inc(len(dropped))
