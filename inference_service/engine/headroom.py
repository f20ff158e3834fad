"""What the engine does where the device has less than it is about to take, and when an allocation has failed.

On CUDA a failed allocation is an exception, and one turn is begun again. On a CPU, MLX 0.32 does not check whether an
allocation succeeded, and crashes; on Metal a command that finds no memory ends the process. So what restored KV, a
chunk or a pass is about to take is compared with what is free. Where that is less, memory is let go: MLX's freed
buffers first, then what the pool can spare. Then chunks become smaller, and at last one turn fails.
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
"""Chunks of so few tokens are computed without looking: they take less than the floor of free memory."""


def ran_out(error: BaseException) -> bool:
    """Whether the device, or the host, had no memory for an allocation."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_MESSAGES.search(str(error))))


@dataclass(eq=False)
class Headroom:
    """Looks for free memory before one model takes it. Engine thread only.

    `limit_bytes` is what computing may take wherever in the context; 0: unknown, and chunks are not looked at.
    `relieve` has the pool give back so many bytes, if it can. `free` returns the device's free bytes. `cost` says what
    chunks take; without it the largest ones take the limit.
    """

    limit_bytes: int = 0
    relieve: Callable[[int], object] = lambda nbytes: None  # noqa: ARG005
    free: Callable[[], int] = free_bytes
    cost: Cost | None = None

    def make(self, nbytes: int) -> bool:
        """Let memory go until so many bytes are free; return whether they are."""
        if self.spare(nbytes):
            return True
        self.relieve(nbytes - self.free())
        return nbytes <= self.free()

    def spare(self, nbytes: int) -> bool:
        """Whether so many bytes are free, without taking any from the pool."""
        if nbytes <= self.free():
            return True
        _let_go()
        return nbytes <= self.free()

    def require(self, nbytes: int, what: str) -> None:
        """Raise ResourceExhausted, which says what needs so many bytes, where they cannot be made free."""
        if nbytes and not self.make(nbytes):
            raise self.refusal(what, nbytes)

    def chunk(self, position: int, tokens: int) -> int:
        """How many of a chunk's tokens at `position` there is memory for: all, or halved until there is.

        Raises ResourceExhausted where there is none for the smallest chunk.
        """
        while tokens > LEAST_CHUNK and not self.within_limit(position, tokens):
            tokens = max(LEAST_CHUNK, tokens // 2)
        if self.fits(position, tokens):
            return tokens
        while tokens > LEAST_CHUNK:
            tokens = max(LEAST_CHUNK, tokens // 2)
            if self.fits(position, tokens):  # The pool may have enough for this many.
                return tokens
        raise self.refusal(f"{tokens} tokens of the prompt", self.needed(position, tokens))

    def within_limit(self, position: int, tokens: int) -> bool:
        """Return whether a chunk takes no more than computing may."""
        return not self.limit_bytes or self.needed(position, tokens) <= self.limit_bytes

    def fits(self, position: int, tokens: int) -> bool:
        """Whether there is memory for a chunk of so many tokens at `position`, or can be made free."""
        return not self.limit_bytes or tokens <= _UNSEEN or self.make(self.needed(position, tokens))

    def recover(self) -> None:
        """Let go what can be let go at once, after an allocation that failed."""
        _let_go()
        self.make(self.limit_bytes)

    def explained(self, error: Exception) -> Exception:
        """The error that a turn fails with: of a failed allocation one that says what was needed, and was free."""
        return self.refusal("the request", self.limit_bytes) if ran_out(error) else error

    def refusal(self, what: str, needed: int) -> ResourceExhausted:
        """The error of a turn for which there is no memory."""
        return ResourceExhausted(
            f"the device's memory is taken: {what} needed about {byte_size(needed)} at once, and "
            f"{byte_size(self.free())} are free; end other processes on the device, or try again"
        )

    def needed(self, position: int, tokens: int) -> int:
        """Bytes that a chunk of so many tokens at `position` takes besides its KV."""
        return (self.cost or MeasuredCost(self.limit_bytes)).of(tokens, position)


def _let_go() -> None:
    """Give MLX's freed buffers back to the device; CUDA does so once all running kernels have ended."""
    mx.clear_cache()
    with suppress(RuntimeError):  # It raises again what has failed just now.
        mx.synchronize()
