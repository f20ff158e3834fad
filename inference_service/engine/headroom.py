"""Memory checks before the engine takes memory, and recovery from a failed allocation.

On CUDA a failed allocation is an exception, and one turn restarts. On a CPU, MLX 0.32 does not check allocations, and
crashes; on Metal a command without memory ends the process. So the needs of restored KV, a chunk, and a pass with the
prompts that ride are compared with free memory first. If too little is free, memory is released: MLX's freed buffers,
then what the pool can spare. Then turns go on without arrays of K and V, chunks shrink, fewer prompts ride, and at last
one turn fails.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx

from agentmem.errors import ResourceExhausted
from agentmem.sizes import byte_size
from inference_service.engine.computing import LEAST_CHUNK, Cost, MeasuredCost
from inference_service.engine.device import free_bytes

_MESSAGES = re.compile(r"out of memory|Unable to allocate|ALLOC_FAILED|insufficient memory", re.IGNORECASE)
"""In errors of CUDA and its allocators, MLX, cuBLAS, cuDNN and Metal."""
_UNSEEN = 64
"""Chunks of so few tokens are not checked: they take less than the floor of free memory."""


def ran_out(error: BaseException) -> bool:
    """Return whether an allocation failed, on the device or the host."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_MESSAGES.search(str(error))))


@dataclass(eq=False)
class Headroom:
    """Checks free memory before one model takes it. Engine thread only.

    `limit_bytes` is the most that computing may take, anywhere in the context; with 0, unknown, chunks are not checked.
    `relieve` makes the pool give back so many bytes, if it can. `free` returns the device's free bytes. `cost` is that
    of chunks; without it the largest take the limit.
    """

    limit_bytes: int = 0
    relieve: Callable[[int], object] = lambda nbytes: None  # noqa: ARG005
    free: Callable[[], int] = free_bytes
    cost: Cost | None = None

    def make(self, nbytes: int) -> bool:
        """Release memory until `nbytes` are free; return whether they are."""
        if self.spare(nbytes):
            return True
        self.relieve(nbytes - self.free())
        return nbytes <= self.free()

    def spare(self, nbytes: int) -> bool:
        """Return whether `nbytes` are free, without taking any from the pool."""
        if nbytes <= self.free():
            return True
        _let_go()
        return nbytes <= self.free()

    def chunk(self, position: int, tokens: int) -> int:
        """Return how many of a chunk's tokens at `position` fit in memory: all, or halved until they do.

        Raises ResourceExhausted if the smallest chunk does not fit.
        """
        if found := self.most(position, tokens, LEAST_CHUNK):
            return found
        least = min(tokens, LEAST_CHUNK)
        raise self.refusal(f"{least} tokens of the prompt", self.needed(position, least))

    def most(self, position: int, tokens: int, least: int) -> int:
        """Return how many tokens at `position` or before fit in memory at once: all, or halved until they do; 0 if even
        `least` do not. The pool may have enough for fewer.
        """

        def fit(tokens: int) -> bool:
            return (tokens <= LEAST_CHUNK or self.within_limit(position, tokens)) and self.fits(position, tokens)

        while tokens > least and not fit(tokens):
            tokens = max(least, tokens // 2)
        return tokens if tokens > least or fit(tokens) else 0

    def within_limit(self, position: int, tokens: int) -> bool:
        """Return whether a chunk takes no more than computing may."""
        return not self.limit_bytes or self.needed(position, tokens) <= self.limit_bytes

    def fits(self, position: int, tokens: int) -> bool:
        """Return whether memory for a chunk of `tokens` at `position` is free, or can be made free."""
        return not self.limit_bytes or tokens <= _UNSEEN or self.make(self.needed(position, tokens))

    def recover(self) -> None:
        """Release memory after a failed allocation, of the pool until `limit_bytes` are free."""
        _let_go()
        self.make(self.limit_bytes)

    def explained(self, error: Exception) -> Exception:
        """Return the error that a turn fails with: for a failed allocation, one that names needed and free bytes."""
        return self.refusal("the request", self.limit_bytes) if ran_out(error) else error

    def refusal(self, what: str, needed: int) -> ResourceExhausted:
        """Return the error of a turn for which there is no memory."""
        return ResourceExhausted(
            f"the device's memory is taken: {what} needed about {byte_size(needed)} at once, and "
            f"{byte_size(self.free())} are free; end other processes on the device, or try again"
        )

    def needed(self, position: int, tokens: int) -> int:
        """Return the bytes that a chunk of `tokens` at `position` takes besides its KV."""
        return (self.cost or MeasuredCost(self.limit_bytes)).of(tokens, position)


def _let_go() -> None:
    """Give MLX's freed buffers back to the device; CUDA does so once all running kernels have ended."""
    mx.clear_cache()
    with suppress(RuntimeError):  # It raises the same failure again.
        mx.synchronize()
