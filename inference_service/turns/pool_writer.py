"""Where a turn's KV goes when it has committed: into the pool, and from there to disk.

Whatever goes wrong here costs time later and nothing else: the ledger has the turn, or never had it.
"""

import asyncio
import logging
from dataclasses import replace
from itertools import groupby

from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import BlockHeader
from agentmem.kv.ledger import Ledger, Uint32, ordered
from agentmem.process.shielding import run_shielded
from inference_service.engine.caches.lengths import CacheLengthError, check_lengths
from inference_service.engine.checkpoints import space_of
from inference_service.engine.generation import TurnJob
from inference_service.engine.geometry import Caches
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.memory.spacing import kept_positions
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.pool.blocks import BlockTokens, PoolError
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table
from inference_service.threads import WorkerThreads
from inference_service.turns.persisting import Persister, State
from inference_service.turns.turn import Turn

log = logging.getLogger(__name__)


class PoolWriter:
    """Keeps the KV of turns. Event loop only; call it under the agent's lock."""

    def __init__(self, engine: EngineThread, threads: WorkerThreads, persister: Persister) -> None:
        self._engine = engine
        self._threads = threads
        self._persister = persister

    async def keep(self, turn: Turn, model: LoadedModel, job: TurnJob) -> None:
        """Copy what is new of a committed turn's caches into the pool, and have it written to disk."""
        key, reservation = turn.request.key, turn.reservation
        ledger = await self._threads.plan(lambda: _ledger_after(turn, model))
        ids = model.fingerprint, key.namespace, ledger.token_ids
        blocks = await self._threads.plan(lambda: list(headers(*ids)))
        table = await self.write(model, reservation, job.caches, ledger.token_ids, blocks)
        if table is None:
            return
        windows = _windows(turn, model, job, table)
        model.memory.hot.put(key, HotState(turn.version, ledger, table, windows))
        named = checkpoint_headers(*ids, windows)
        captured = {
            header.chain_hash: job.captured[position]
            for header in named
            if (position := header.first_token + header.token_count) in job.captured
        }
        self._persister.publish(State(key, turn.version, model, table, blocks, named, captured))

    async def write(
        self, model: LoadedModel, reservation: Reservation, caches: Caches, token_ids: Uint32, blocks: list[BlockHeader]
    ) -> Table | None:
        """Copy what the pool lacks of caches of these tokens, and name it by `blocks`.

        Return the table, with its references; None, and a line in the log, where that fails. Raises PoolError.
        """
        if not caches or not self._engine.alive:
            return None
        pool, geometry, tokens = model.memory.pool, model.geometry, len(token_ids)
        known = [pool.full.find(header.chain_hash) for header in blocks]
        shared = [block for block in known if block is not None]
        pool.full.acquire(shared)
        window, pieces = space_of(caches, geometry)
        try:
            table = reservation.table(tokens, known, pieces, window)
        except PoolError:
            pool.full.release(shared)
            raise

        def copy() -> None:
            check_lengths(caches, tokens)
            for there, run in groupby(range(len(known)), lambda index: known[index] is not None):
                if not there:
                    first, *others = run
                    model.arenas.write(caches, first, table.blocks[first : first + 1 + len(others)], ())
            model.arenas.write(caches, len(known), (), table.pieces)

        future = self._engine.submit(copy)
        try:
            await run_shielded(self._engine.wait(future))
        except asyncio.CancelledError:
            pool.release(table)
            raise
        if error := future.exception():
            pool.release(table)
            expected = isinstance(error, AgentmemError | CacheLengthError | MemoryError)
            log.warning("KV could not be put into the pool: %s", error, exc_info=None if expected else error)
            error.__traceback__ = None  # It may hold on to a view of an arena, and the next write would copy it.
            return None
        missing = [header for header, block in zip(blocks, known, strict=True) if block is None]
        new = {header.chain_hash: _tokens_of(header, token_ids) for header in missing}
        return pool.publish([header.chain_hash for header in blocks], table, new)


def _ledger_after(turn: Turn, model: LoadedModel) -> Ledger:
    """Return the ledger that the commit made."""
    generated = turn.generated.token_ids
    added = [*turn.plan.sequence[turn.keep_tokens :].tolist(), *generated]
    ledger = turn.ledger.kept(turn.keep_tokens).followed_by(
        added,
        model.tokenizer.pieces(added),
        model.tokenizer.hash,
        len(generated),
        turn.carried_turns,
        turn.message_hashes,
    )
    return replace(ledger, opening_bytes=turn.opening_bytes)


def _tokens_of(header: BlockHeader, token_ids: Uint32) -> BlockTokens:
    """Return what a sequence's block is found by."""
    own = token_ids[header.first_token : header.first_token + header.token_count]
    return BlockTokens(header.namespace, header.parent, ordered(own))


def _windows(turn: Turn, model: LoadedModel, job: TurnJob, table: Table) -> dict[int, int]:
    """Return the agent's windows: stored tokens by position. None for a model of full attention alone."""
    windows, hot = turn.restored.stored_windows(), turn.reservation.hot.windows if turn.reservation.hot else {}
    windows |= {position: tokens for position, tokens in hot.items() if position <= turn.shared_tokens}
    windows |= {position: checkpoint.tokens for position, checkpoint in job.captured.items()}
    if table.pieces:
        windows[table.tokens] = table.window_tokens
    return {position: windows[position] for position in kept_positions(windows, model.checkpoint_distance)}
