"""Bringing an agent's KV into the pool ahead of its turn, so that its next prompt finds it there."""

import asyncio
import logging
import time
from typing import NamedTuple

from agentmem.errors import NotFound
from agentmem.keys import AgentKey
from agentmem.v1 import types_pb2
from inference_service.engine.thread import EngineThread
from inference_service.memory.ledger import NO_VERSION, Ledger
from inference_service.memory.plan import Plan
from inference_service.memory.restore import headers, look_up
from inference_service.memory.windows import window_candidates
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Demand, Room
from inference_service.pool.hot import HotState
from inference_service.storage.client import Opened, StoreClient
from inference_service.turns.keeping import Keeper
from inference_service.turns.planned import Planned
from inference_service.turns.restoring import Restorer
from inference_service.turns.rooms import Rooms

log = logging.getLogger(__name__)

_NEXT = (0,)
"""What stands for the prompt's new tokens, whatever they will be: all of the ledger can be reused before them."""


class Prefetched(NamedTuple):
    """Tokens of the agent that are in the pool now, and the bytes that were read for it."""

    tokens: int
    load_bytes: int


class Prefetcher:
    """Prefetches. Event loop only; call it under the agent's lock."""

    def __init__(
        self, engine: EngineThread, store: StoreClient, restorer: Restorer, keeper: Keeper, rooms: Rooms
    ) -> None:
        self._engine = engine
        self._store = store
        self._restorer = restorer
        self._keeper = keeper
        self._rooms = rooms

    async def prefetch(self, key: AgentKey, model: LoadedModel) -> Prefetched:
        """Have the agent's KV in the pool, as far as there is any and room for it, and the agent as the one used last.

        It waits for no room: turns come before it, and so do agents that speak as soon. What another tokenizer made is
        left: the next turn will not use it. Raises NotFound for an unknown agent, and FailedPrecondition for one that
        would not fit into an empty pool.
        """
        memory = model.memory
        hot = memory.hot.get(key)
        opened = await self._store.open(key, hot.version if hot is not None else NO_VERSION)
        if opened.version == NO_VERSION:
            raise NotFound("agent", key.agent_id)
        if hot is not None and hot.version != opened.version:
            memory.hot.drop(key)
            hot = None
        ledger = opened.ledger or (hot.ledger if hot is not None else Ledger())
        if not len(ledger) or ledger.tokenizer_hash != model.tokenizer.hash:
            return Prefetched(0, 0)
        if hot is not None and hot.table.tokens == len(ledger):
            memory.hot.touch(key)
            return Prefetched(len(ledger), 0)
        planned = await asyncio.to_thread(_planned, key.namespace, model, opened, ledger)
        found = await self._restorer.probe(key, model, planned)  # Nobody goes for what is not there.
        held = hot.table.tokens if (hot := memory.hot.get(key)) is not None else 0
        if found.tokens <= held:
            return Prefetched(held, 0)
        demand = Demand(key, planned.lookup.own, found.tokens, keeps=True)
        with self._rooms.enter_at_once(model, demand) as room:
            return Prefetched(held, 0) if room is None else await self._load(key, model, planned, room)

    async def _load(self, key: AgentKey, model: LoadedModel, planned: Planned, room: Room) -> Prefetched:
        held = room.hot.table.tokens if room.hot is not None else 0
        reuse = await self._restorer.find(key, model, planned, room)
        if not held < reuse.tokens <= room.tokens:  # More files than a moment ago are for the next turn.
            return Prefetched(held, 0)
        began = time.monotonic()
        caches = await self._engine.call(reuse.caches)
        if reuse.load_bytes:
            self._restorer.loaded(model, reuse.load_seconds + time.monotonic() - began)
        sequence = planned.ledger.token_ids[: reuse.tokens]
        blocks = await asyncio.to_thread(lambda: list(headers(model.fingerprint, key.namespace, sequence)))
        table = await self._keeper.pool(model, room, caches, reuse.tokens, blocks)
        if table is None:
            return Prefetched(held, 0)
        model.memory.hot.put(key, HotState(planned.base, planned.ledger, table, reuse.windows))
        room.superseded = True
        return Prefetched(reuse.tokens, reuse.load_bytes)


def _planned(namespace: str, model: LoadedModel, opened: Opened, ledger: Ledger) -> Planned:
    """A turn that goes on from the end of the ledger."""
    sequence = (*ledger.token_ids, *_NEXT)
    ids = model.fingerprint, namespace
    return Planned(
        base=opened.version,
        ledger=ledger,
        snapshot_version=0,
        keep_tokens=len(ledger),
        shared_tokens=len(ledger),
        dropped_tokens=0,
        retokenized=False,
        incompatible=opened.is_incompatible(model.fingerprint),
        plan=Plan(types_pb2.MATCH_EXTEND, types_pb2.MISS_REASON_UNSPECIFIED, len(ledger), _NEXT, sequence),
        lookup=look_up(*ids, ledger.token_ids, len(ledger), sequence),
        windows=window_candidates(*ids, ledger, len(ledger), sequence, ()) if model.geometry.sliding else (),
        decoding=None,
        context_remaining=model.context_length - len(ledger),
        appended=True,
    )
