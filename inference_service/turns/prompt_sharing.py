"""A running turn's prompt in the pool: full blocks are named as they are computed, and stay if it does not commit."""

from dataclasses import dataclass, field

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT
from inference_service.engine.generation import TurnJob
from inference_service.engine.prompt_blocks import Kept, PromptBlocks
from inference_service.engine.thread import EngineThread
from inference_service.models.loaded import LoadedModel
from inference_service.pool.blocks import BlockTokens
from inference_service.pool.kv import Table
from inference_service.turns.restored import Restored
from inference_service.turns.turn import Turn


@dataclass(eq=False)
class PromptSharing:
    """One turn's. Event loop only, from the restoring of KV until the reservation's release."""

    turn: Turn
    model: LoadedModel
    engine: EngineThread
    blocks: PromptBlocks = field(init=False)
    """The engine thread's."""
    job: TurnJob | None = field(default=None, init=False)
    _kept: bool = field(default=False, init=False)
    _over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.blocks = PromptBlocks(
            self.turn.restored.lookup.own,  # Empty if nothing may be reused.
            kept=self._keep,
            look=lambda: self.engine.tell(self._look),
        )

    def _keep(self, kept: Kept) -> None:
        """Note blocks that others find, which are never written again. Engine thread."""
        self.turn.reservation.named = kept.end
        self.turn.reservation.given |= set(kept.checkpoint.pieces if kept.checkpoint is not None else ())
        self.engine.tell(self._name, kept)

    def _name(self, kept: Kept) -> None:
        """Name computed blocks, and the checkpoint at their end. This turn references known ones beside its own."""
        if self._over:
            return
        turn, pool, names = self.turn, self.model.memory.pool, self.blocks.names
        reservation, places, wanted = turn.reservation, turn.restored.places(), range(kept.first, kept.end)
        known = {index: block for index in wanted if (block := pool.full.find(names[index])) is not None}
        own = tuple(known.get(index, places[index]) for index in wanted)
        namespace, sequence, parents = turn.request.key.namespace, turn.plan.sequence, (NO_PARENT, *names)
        new = {
            names[index]: BlockTokens.of(namespace, parents[index], sequence, index * BLOCK_TOKENS)
            for index in wanted
            if index not in known
        }
        held = reservation.claim(pool, Table(0, own))
        reservation.pins.append(pool.publish(names[kept.first : kept.end], held, new))
        self._kept = True
        if (end := kept.checkpoint) is not None and pool.find_checkpoint(names[kept.end - 1]) is None:
            table = reservation.claim(pool, Table.of(end))
            reservation.pins.append(pool.publish_checkpoint(names[kept.end - 1], table))

    def _look(self) -> None:
        """Continue from what others have computed since, if that is more. With files read, others are unlikely to share
        more.
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
            begin, tokens = (more.sequence, more.tokens) if more is not None else (None, 0)
            if self.engine.alive:
                self.engine.submit(lambda: job.found(begin, tokens))

    def leave(self) -> None:
        """End it for an uncommitted turn: its blocks stay until memory is needed, unless it was to leave nothing."""
        job, pool = self.job, self.model.memory.pool
        if job is None or not self._kept or not self.turn.request.commits:
            return
        window = Table(0, ())
        if (latest := job.latest) is not None:
            claimed = self.turn.reservation.claim(pool, Table.of(latest))
            window = pool.publish_checkpoint(self.blocks.names[latest.position // BLOCK_TOKENS - 1], claimed)
        blocks = tuple(block for name in self.blocks.names if (block := pool.full.find(name)) is not None)
        pool.full.acquire(blocks)
        left = Table(len(blocks) * BLOCK_TOKENS, blocks, window.window_tokens, window.pieces)
        self.model.memory.hot.leave(self.turn.request.key, left, listed=self.turn.base.number > 0)

    def close(self) -> None:
        """End it, and drop references, which would wait for a collection."""
        self._over, self.job, self.blocks = True, None, PromptBlocks()
