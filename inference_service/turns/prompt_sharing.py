"""A running turn's prompt in the pool: its full blocks are named as they are computed, and stay if it does not commit.

They go to blocks that the turn has reserved. The ledger has nothing of them before the commit.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT
from agentmem.kv.ledger import ordered
from inference_service.engine.checkpoints import Checkpoint, pieces_of
from inference_service.engine.generation import TurnJob
from inference_service.engine.prompt_blocks import Kept, PromptBlocks
from inference_service.engine.thread import EngineThread
from inference_service.models.loaded import LoadedModel
from inference_service.pool.blocks import BlockTokens
from inference_service.pool.kv import Table
from inference_service.turns.restored import Restored
from inference_service.turns.turn import Turn

_LEFT_FREE: Final = 3
"""Checkpoints that the pool has room for when one is set aside."""


@dataclass(eq=False)
class PromptSharing:
    """One turn's. Event loop only, between the restoring of its KV and the release of its reservation."""

    turn: Turn
    model: LoadedModel
    engine: EngineThread
    blocks: PromptBlocks = field(init=False)
    """For the job, on the engine's thread."""
    job: TurnJob | None = field(default=None, init=False)
    _spare: Table | None = field(default=None, init=False)
    """Place for a checkpoint where others may leave the prompt."""
    _kept: bool = field(default=False, init=False)
    _over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        loop, restored, reservation = asyncio.get_running_loop(), self.turn.restored, self.turn.reservation
        names = restored.lookup.own  # None where nothing may be reused.
        places = dict(zip(range(restored.tokens // BLOCK_TOKENS, len(names)), reservation.blocks, strict=False))
        self.blocks = PromptBlocks(
            names,
            places,
            lambda caches, first, blocks: self.model.arenas.write(caches, first, blocks, ()),
            kept=lambda kept: loop.call_soon_threadsafe(self._name, kept),
            look=lambda: loop.call_soon_threadsafe(self._look),
        )
        if places and not self.model.geometry.resumes_anywhere:
            self._set_aside()

    def _set_aside(self) -> None:
        """Take pieces for a checkpoint, if turns that come later have enough: none waits because of it."""
        pool = self.model.memory.pool
        if pool.pieces.free >= _LEFT_FREE * pool.checkpoint_pieces:
            spare = Table(0, (), 0, tuple(pool.pieces.allocate(pool.checkpoint_pieces)))
            self.turn.reservation.pins.append(spare)
            self._spare = spare
            self.blocks.write_checkpoint = lambda checkpoint: self.model.arenas.write_checkpoint(
                checkpoint, spare.pieces[: pieces_of(checkpoint.tokens, self.model.geometry)]
            )

    def _name(self, kept: Kept) -> None:
        """Have blocks found that are written.

        A name that is there already gets this turn's reference, and its place is the turn's still: no more is reserved
        than the pool lacked.
        """
        if self._over:
            return
        pool, reservation, names = self.model.memory.pool, self.turn.reservation, self.blocks.names
        blocks = []
        for index in range(kept.first, kept.end):
            block = self.blocks.places[index]
            if (known := pool.full.find(names[index])) is not None:
                pool.full.acquire([known])
                blocks.append(known)
                continue
            reservation.blocks.remove(block)
            blocks.append(pool.full.publish(names[index], block, self._tokens(index)))
        reservation.pins.append(Table(0, tuple(blocks)))
        self._kept = True
        if kept.checkpoint is not None and self._spare is not None:
            reservation.pins.remove(self._spare)
            pieces = pieces_of(kept.checkpoint.tokens, self.model.geometry)
            rest = Table(0, (), 0, self._spare.pieces[pieces:])
            table = Table(0, (), kept.checkpoint.tokens, self._spare.pieces[:pieces])
            reservation.pins += [pool.publish_checkpoint(names[kept.end - 1], table), rest]

    def _tokens(self, index: int) -> BlockTokens:
        names, first = self.blocks.names, index * BLOCK_TOKENS
        parent = names[index - 1] if index else NO_PARENT
        own = self.turn.plan.sequence[first : first + BLOCK_TOKENS]
        return BlockTokens(self.turn.request.key.namespace, parent, ordered(own))

    def _look(self) -> None:
        """See what others have computed since the turn's KV was found, and go on from there if that is more.

        Not where files were read: what was found is larger than what others are likely to have in common with it.
        """
        turn, job = self.turn, self.job
        if job is None:
            return
        more: Restored | None = None
        try:
            if not turn.restored.wanted_files():
                found = Restored.in_pool(turn.request.key, self.model, turn.restored.lookup)
                found.choose(0)
                more = found if found.tokens > turn.restored.tokens else None
            if more is not None:
                more.hold(turn.reservation)
                turn.restored = more
        finally:
            caches, tokens = (more.caches, more.tokens) if more is not None else (None, 0)
            if self.engine.alive:
                self.engine.submit(lambda: job.found(caches, tokens))

    async def leave(self) -> None:
        """End it for a turn that was not committed: what it has computed stays in the pool, until memory is needed."""
        job, pool = self.job, self.model.memory.pool
        if job is None or not self._kept:
            return
        window = await self._checkpoint(job.latest) if job.latest is not None else Table(0, ())
        blocks = tuple(block for name in self.blocks.names if (block := pool.full.find(name)) is not None)
        pool.full.acquire(blocks)
        left = Table(len(blocks) * BLOCK_TOKENS, blocks, window.window_tokens, window.pieces)
        self.model.memory.hot.leave(self.turn.request.key, left, listed=self.turn.base.number > 0)

    def close(self) -> None:
        """End it: what is written later is nobody's. What refers to this goes, or it would wait to be collected."""
        self._over, self.job, self.blocks = True, None, PromptBlocks()

    async def _checkpoint(self, latest: Checkpoint) -> Table:
        """Put a checkpoint into the pieces that were reserved for the turn's end; return it, with its references."""
        pool, reserved = self.model.memory.pool, self.turn.reservation.pieces
        count = pieces_of(latest.tokens, self.model.geometry)
        if count > len(reserved):
            return Table(0, ())
        table = Table(0, (), latest.tokens, tuple(reserved.pop() for _ in range(count)))
        try:
            await self.engine.call(lambda: self.model.arenas.write_checkpoint(latest, table.pieces))
        except BaseException:
            pool.release(table)
            raise
        return pool.publish_checkpoint(self.blocks.names[latest.position // BLOCK_TOKENS - 1], table)
