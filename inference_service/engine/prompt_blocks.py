"""The full blocks of a prompt, which are named while the prompt is computed. Engine thread.

So turns that begin with the same tokens find them at once, and a turn that is cancelled leaves what it has computed.
A block's name is its chain hash, as everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.paged.sequence import Checkpoint


@dataclass(frozen=True)
class Kept:
    """Blocks `first` to `end` (exclusive) of a prompt that are computed, and the checkpoint at their end."""

    first: int
    end: int
    checkpoint: Checkpoint | None = None


@dataclass(eq=False)
class PromptBlocks:
    """The full blocks of one turn's prompt. By default there are none.

    `names` are those of all full blocks of the prompt. `kept` is called for what was computed, `look` to have the pool
    looked through again; both on the engine thread.
    """

    names: Sequence[bytes] = ()
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

    def keep(self, tokens: int, checkpoint: Checkpoint | None = None) -> Sequence[bytes]:
        """Full blocks of the first `tokens` tokens are computed; return the names of new ones.

        `checkpoint` is at `tokens`, where there is one.
        """
        first, end = self._done, min(tokens // BLOCK_TOKENS, len(self.names))
        if first >= end:
            return ()
        self._done = end
        self.kept(Kept(first, end, checkpoint if tokens == end * BLOCK_TOKENS else None))
        return self.names[first:end]
