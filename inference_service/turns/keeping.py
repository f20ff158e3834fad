"""What becomes of a turn's KV: it goes into the pool, and from there to disk.

Whatever goes wrong here costs time later and nothing else: the ledger has the turn, or never had it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from agentmem.blockfile import BlockHeader
from agentmem.errors import AgentmemError
from agentmem.keys import AgentKey
from agentmem.shielding import to_its_end
from inference_service.engine.generation import CacheLengthError, TurnJob, check_lengths
from inference_service.engine.geometry import Caches
from inference_service.engine.thread import EngineThread
from inference_service.memory.ledger import Version
from inference_service.memory.restore import headers
from inference_service.memory.windows import kept_positions, window_headers
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Room
from inference_service.pool.blocks import PoolError
from inference_service.pool.hot import HotState
from inference_service.pool.kv import KVPool, Space, Table
from inference_service.turns.persisting import Persister, State
from inference_service.turns.planned import Prepared

log = logging.getLogger(__name__)


class Keeper:
    """Keeps the KV of turns. Event loop only; call it under the agent's lock."""

    def __init__(self, engine: EngineThread, persister: Persister) -> None:
        self._engine = engine
        self._persister = persister

    async def keep(
        self,
        key: AgentKey,
        version: Version,
        model: LoadedModel,
        prepared: Prepared,
        room: Room,
        job: TurnJob,
        message_hashes: Sequence[bytes] = (),
    ) -> None:
        """Copy what is new of a finished turn's caches into the pool, and have it written.

        `message_hashes` are those that it was committed with.
        """
        generated = job.result.token_ids
        sequence = (*prepared.plan.sequence, *generated)
        blocks = await asyncio.to_thread(lambda: list(headers(model.fingerprint, key.namespace, sequence)))
        table = await self.pool(model, room, job.caches, len(sequence), blocks)
        if table is None:
            return
        ledger = prepared.ledger.kept(prepared.keep_tokens)
        added = sequence[len(ledger) :]
        pieces, carried = model.tokenizer.pieces(added), prepared.carried_turns
        ledger = ledger.followed_by(
            *(added, pieces, model.tokenizer.hash, len(generated), carried), message_hashes=message_hashes
        )
        ledger = replace(ledger, opening_bytes=prepared.opening_bytes)
        windows = _windows(prepared, room, job, table)
        model.memory.hot.put(key, HotState(version, ledger, table, windows))
        named = window_headers(model.fingerprint, key.namespace, sequence, windows)
        captured = {
            header.chain_hash: job.windows[position]
            for header in named
            if (position := header.first_token + header.token_count) in job.windows
        }
        self._persister.publish(State(key, version, model, table, blocks, named, captured))

    async def pool(
        self, model: LoadedModel, room: Room, caches: Caches, tokens: int, blocks: list[BlockHeader]
    ) -> Table | None:
        """Copy what the pool lacks of caches of so many tokens, and name it by `blocks`.

        The table, with its references; None, and a line in the log, where that fails. Raises PoolError.
        """
        if not caches or not self._engine.alive:
            return None
        pool, geometry = model.memory.pool, model.geometry
        shared = _shared(pool, blocks)
        window = caches[geometry.sliding.layers[0]].buffers.filled if geometry.sliding else 0
        pieces = -(-window // geometry.piece_tokens) if window else 0
        try:
            table = room.table(tokens, shared, Space(len(blocks), pieces), window)
        except PoolError:
            pool.full.release(shared)
            raise

        def write() -> None:
            check_lengths(caches, tokens)
            model.arenas.write(caches, len(shared), table.blocks[len(shared) :], table.pieces)

        future = self._engine.submit(write)
        try:
            await to_its_end(self._engine.wait(future))
        except asyncio.CancelledError:
            pool.release(table)
            raise
        if error := future.exception():
            pool.release(table)
            known = isinstance(error, AgentmemError | CacheLengthError)
            log.warning("KV could not be put into the pool: %s", error, exc_info=None if known else error)
            error.__traceback__ = None  # It may hold on to a view of an arena, and the next write would copy it.
            return None
        return pool.publish([header.chain_hash for header in blocks], table)


def _windows(prepared: Prepared, room: Room, job: TurnJob, table: Table) -> dict[int, int]:
    """The windows that the agent has now: stored tokens by position. None for a model without sliding layers."""
    if not table.pieces:
        return {}
    on_disk, hot = prepared.reuse.windows, room.hot.windows if room.hot else {}
    windows = {position: tokens for position, tokens in on_disk.items() if position <= prepared.keep_tokens}
    windows |= {position: tokens for position, tokens in hot.items() if position <= prepared.shared_tokens}
    windows |= {position: window[0].filled for position, window in job.windows.items()}
    windows[table.tokens] = table.window_tokens
    return {position: windows[position] for position in kept_positions(windows)}


def _shared(pool: KVPool, blocks: list[BlockHeader]) -> list[int]:
    """The beginning that is in the pool already, with references."""
    shared: list[int] = []
    for header in blocks:
        block = pool.full.find(header.chain_hash)
        if block is None:
            break
        shared.append(block)
    pool.full.acquire(shared)
    return shared
