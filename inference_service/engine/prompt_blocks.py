"""Full blocks of a prompt, named while it is computed, so that others find them. Engine thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.paged.sequence import Checkpoint


@dataclass(frozen=True)
class Kept:
    first: int
    end: int
    checkpoint: Checkpoint | None = None


@dataclass(eq=False)
class PromptBlocks:
    names: Sequence[bytes] = ()
    kept: Callable[[Kept], object] = lambda kept: None  # noqa: ARG005
    look: Callable[[], object] = lambda: None
    looking: bool = False
    """The turn waits for an answer to `look`."""
    _looked_for: bytes = b""
    _done: int = 0

    def begin(self, reused: int) -> None:
        self._done = max(self._done, reused // BLOCK_TOKENS)

    def at(self, position: int) -> bytes:
        index = position // BLOCK_TOKENS
        return self.names[index] if index < len(self.names) else b""

    def look_for(self, name: bytes) -> bool:
        """Return whether an answer will come: not twice for a block."""
        if name == self._looked_for:
            return False
        self._looked_for, self.looking = name, True
        self.look()
        return True

    def keep(self, tokens: int, checkpoint: Checkpoint | None = None) -> Sequence[bytes]:
        first, end = self._done, min(tokens // BLOCK_TOKENS, len(self.names))
        if first >= end:
            return ()
        self._done = end
        self.kept(Kept(first, end, checkpoint if tokens == end * BLOCK_TOKENS else None))
        return self.names[first:end]
