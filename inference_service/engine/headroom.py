"""What the engine does where the device has less than it is about to take, and when an allocation has failed.

On CUDA an allocation that fails is an exception, and one turn is begun again. A CPU's MLX 0.32 uses what it did not
get, and dies; on Metal a command that finds no memory ends the process. So what a chunk and a batch are about to take
is compared with what is free, and where that is less, memory is let go: MLX's freed buffers first, then what the pool
can spare. Then chunks become smaller, and at last one turn fails.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx

from agentmem.errors import ResourceExhausted
from agentmem.sizes import byte_size
from inference_service.engine.device import free_bytes
from inference_service.engine.scheduling import SMALLEST_CHUNK, largest_chunk

_MESSAGES = re.compile(r"out of memory|Unable to allocate|ALLOC_FAILED|insufficient memory", re.IGNORECASE)
"""Of CUDA and its allocators, of MLX's own, of cuBLAS and cuDNN, of Metal."""
_UNSEEN = 64
"""Tokens of a chunk that is too small to look for: what it takes is less than the floor of free memory."""


def ran_out(error: BaseException) -> bool:
    """Whether the device, or the host, had no memory for an allocation."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_MESSAGES.search(str(error))))


@dataclass(eq=False)
class Headroom:
    """What is free for one model. Engine thread only.

    `peak_bytes` is what computing takes at its peak: a largest chunk, wherever in the context; 0 is never looked for.
    `relieve` has the pool give back that much, as far as it can. `least_bytes` is what a chunk takes however small it
    is: weights that are dequantized.
    """

    peak_bytes: int = 0
    relieve: Callable[[int], object] = lambda nbytes: None  # noqa: ARG005
    free: Callable[[], int] = free_bytes
    least_bytes: int = 0

    def make(self, nbytes: int) -> bool:
        """Let memory go until so many bytes are free; whether they are."""
        if nbytes <= self.free():
            return True
        _let_go()
        lacking = nbytes - self.free()
        if lacking > 0:
            self.relieve(lacking)
        return nbytes <= self.free()

    def require(self, nbytes: int, what: str) -> None:
        """Raise ResourceExhausted, which says what needs so many bytes, where they cannot be made free."""
        if nbytes and not self.make(nbytes):
            raise self.refusal(what, nbytes)

    def chunk(self, position: int, tokens: int) -> int:
        """As many of a chunk's tokens at `position` as there is memory for, halved until there is.

        Raises ResourceExhausted where there is none for the smallest chunk.
        """
        if not self.peak_bytes or tokens <= _UNSEEN or self.make(self._needed(position, tokens)):
            return tokens
        while tokens > SMALLEST_CHUNK:
            tokens = max(SMALLEST_CHUNK, tokens // 2)
            if self.make(self._needed(position, tokens)):  # The pool may have enough for this many.
                return tokens
        raise self.refusal(f"{tokens} tokens of the prompt", self._needed(position, tokens))

    def recover(self) -> None:
        """Let go what can be let go at once, for a turn that begins again in the smallest chunks."""
        _let_go()
        self.make(self.peak_bytes)

    def explained(self, error: Exception) -> Exception:
        """What a turn fails with: an allocation that failed says what was needed, and what was free."""
        return self.refusal("the request", self.peak_bytes) if ran_out(error) else error

    def refusal(self, what: str, needed: int) -> ResourceExhausted:
        """The error of a turn for which there is no memory."""
        return ResourceExhausted(
            f"the device's memory is taken: {what} needed about {byte_size(needed)} at once, and "
            f"{byte_size(self.free())} are free; end other processes on the device, or try again"
        )

    def _needed(self, position: int, tokens: int) -> int:
        return max(self.least_bytes, self.peak_bytes * tokens // largest_chunk(position))


def _let_go() -> None:
    """Give MLX's freed buffers back to the device; CUDA does so when all that runs is done."""
    mx.clear_cache()
    with suppress(RuntimeError):  # Of what has failed just now.
        mx.synchronize()
