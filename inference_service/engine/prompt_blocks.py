"""The full blocks of a prompt, which go into the pool while the prompt is computed. Engine thread.

So turns that begin with the same tokens find them at once, and a turn that is cancelled leaves what it has computed.
A block's name is its chain hash, as everywhere.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.checkpoints import Checkpoint
from inference_service.engine.geometry import Caches

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """Blocks `first` to `end` (exclusive) of a prompt that are in the pool, and the checkpoint at their end."""

    first: int
    end: int
    checkpoint: Checkpoint | None = None


@dataclass(eq=False)
class PromptBlocks:
    """The full blocks of one turn's prompt. By default there are none.

    `names` are those of all full blocks of the prompt, `places` where in the arenas those go that the turn computes, by
    index. `write(caches, first, blocks)` copies KV, and `write_checkpoint` a checkpoint to a place that was set aside
    for one; None where there is none. `kept` is called for what was written, `look` to have the pool looked through
    again; both on the engine thread.
    """

    names: Sequence[bytes] = ()
    places: Mapping[int, int] = field(default_factory=dict)
    write: Callable[[Caches, int, Sequence[int]], None] = lambda caches, first, blocks: None  # noqa: ARG005
    write_checkpoint: Callable[[Checkpoint], None] | None = None
    kept: Callable[[Kept], object] = lambda kept: None  # noqa: ARG005
    look: Callable[[], object] = lambda: None
    looking: bool = False
    """The answer to `look` has not come: the turn does not begin before."""
    _looked_for: bytes = b""
    _done: int = 0

    def begin(self, reused: int) -> None:
        """So many of the prompt's tokens are reused."""
        self._done = max(self._done, reused // BLOCK_TOKENS)

    def at(self, position: int) -> bytes:
        """Return the name of the full block that the token at `position` is in; empty where there is none."""
        index = position // BLOCK_TOKENS
        return self.names[index] if index < len(self.names) else b""

    def look_for(self, name: bytes) -> bool:
        """Have the pool looked through, where that block may be there by now; return whether an answer will come."""
        if name == self._looked_for:
            return False
        self._looked_for, self.looking = name, True
        self.look()
        return True

    def new(self, tokens: int) -> Sequence[bytes]:
        """Return the names of full blocks of the first `tokens` tokens that could go to the pool, and did not yet."""
        wanted = range(self._done, self._end(tokens))
        return self.names[wanted.start : wanted.stop] if all(index in self.places for index in wanted) else ()

    def _end(self, tokens: int) -> int:
        return min(tokens // BLOCK_TOKENS, len(self.names))

    def keep(self, caches: Caches, tokens: int, checkpoint: Checkpoint | None = None) -> Sequence[bytes]:
        """Put full blocks of the first `tokens` tokens in the caches into the pool; return the names of new ones.

        `checkpoint` is at `tokens`, where there is one. It never raises: a turn needs none of this.
        """
        if not (names := self.new(tokens)):
            return ()
        first, end = self._done, self._end(tokens)
        places = [self.places[index] for index in range(first, end)]
        try:
            self.write(caches, first, places)
            kept = Kept(first, end)
            if checkpoint is not None and tokens == end * BLOCK_TOKENS and self.write_checkpoint is not None:
                self.write_checkpoint(checkpoint)
                kept, self.write_checkpoint = Kept(first, end, checkpoint), None
        except Exception as error:  # noqa: BLE001 - the rim of an attempt: the turn goes on without
            log.warning("blocks of a prompt are not kept before its turn ends: %s", error)
            error.__traceback__ = None  # It may hold on to a view of an arena, and the next write would copy it.
            self.places = {}
            return ()
        self._done = end
        self.kept(kept)
        return names
