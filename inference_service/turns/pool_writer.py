"""Names a committed turn's blocks, and has KV written. Failures only cost time later."""

from dataclasses import dataclass, replace

from agentmem.kv.blockfile import BlockHeader
from agentmem.kv.ledger import Ledger, Uint32
from agentmem.process.shielding import run_shielded
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.memory.spacing import kept_positions
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.pool.blocks import BlockTokens
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table
from inference_service.threads import WorkerThreads
from inference_service.turns.persisting import Persister, State
from inference_service.turns.turn import Turn


@dataclass(eq=False, repr=False)
class PoolWriter:
    """Event loop only, under the agent's lock."""

    _engine: EngineThread
    _threads: WorkerThreads
    _persister: Persister

    async def keep(self, turn: Turn, model: LoadedModel, job: TurnJob) -> None:
        key, reservation = turn.request.key, turn.reservation
        kv, _ = job.future.result()
        if kv is None or not self._engine.alive:
            return
        ledger = await self._threads.plan(lambda: _ledger_after(turn, model))
        ids = model.fingerprint, key.namespace, ledger.token_ids
        blocks = await self._threads.plan(lambda: list(headers(*ids)))
        table = await self.write(model, reservation, kv, ledger.token_ids, blocks)
        captured = {each.position: Table.of(each) for each in job.captured.values()}
        windows = _windows(turn, model, captured, table)
        model.memory.hot.put(key, HotState(turn.version, ledger, table, windows))
        named = checkpoint_headers(*ids, windows)
        at = {header.chain_hash: header.first_token + header.token_count for header in named}
        kept = {name: captured[position] for name, position in at.items() if position in captured}
        self._persister.publish(State(key, turn.version, model, table, blocks, named, kept))

    async def write(
        self, model: LoadedModel, reservation: Reservation, kv: Sequence, token_ids: Uint32, blocks: list[BlockHeader]
    ) -> Table:
        """Name a sequence's blocks and checkpoint; return its table, with references. Raises PoolError."""
        pool = model.memory.pool
        end = None
        if not model.geometry.resumes_anywhere:  # Otherwise the agent's next turn would wait for a pass.
            end = await run_shielded(self._engine.call(lambda: model.arenas.capture(kv)))
        own = kv.full.blocks[: len(blocks)]
        known = [pool.full.find(header.chain_hash) for header in blocks]
        places = tuple(block if there is None else there for block, there in zip(own, known, strict=True))
        window = Table.of(end) if end is not None else Table(0, ())
        table = reservation.claim(pool, replace(window, tokens=len(token_ids), blocks=places))
        missing = [header for header, block in zip(blocks, known, strict=True) if block is None]
        new = {h.chain_hash: BlockTokens.of(h.namespace, h.parent, token_ids, h.first_token) for h in missing}
        return pool.publish([header.chain_hash for header in blocks], table, new)


def _ledger_after(turn: Turn, model: LoadedModel) -> Ledger:
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


def _windows(turn: Turn, model: LoadedModel, captured: dict[int, Table], table: Table) -> dict[int, int]:
    """Return stored tokens by position."""
    windows, hot = turn.restored.stored_windows(), turn.reservation.hot.windows if turn.reservation.hot else {}
    windows |= {position: tokens for position, tokens in hot.items() if position <= turn.shared_tokens}
    windows |= {position: checkpoint.window_tokens for position, checkpoint in captured.items()}
    if table.pieces:
        windows[table.tokens] = table.window_tokens
    return {position: windows[position] for position in kept_positions(windows, model.checkpoint_distance)}
