"""Checks of free memory, and recovery from failed allocations, by which MLX crashes on a CPU.

MLX's freed buffers go first, then what the pool can spare; then turns go on without arrays, chunks shrink, fewer
prompts ride, and at last one turn fails.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from agentmem.errors import ResourceExhausted
from agentmem.sizes import byte_size
from inference_service.engine.computing import LEAST_CHUNK, Cost, MeasuredCost
from inference_service.engine.device import free_bytes
from inference_service.engine.lost_device import loss, wait

_MESSAGES = re.compile(r"out of memory|Unable to allocate|ALLOC_FAILED|malloc\] Resource limit", re.IGNORECASE)
"""In CUDA, MLX, cuBLAS and cuDNN; Metal's "Insufficient Memory" is a loss."""
_UNSEEN = 64


def ran_out(error: BaseException) -> bool:
    failed = isinstance(error, RuntimeError) and not loss(error) and bool(_MESSAGES.search(str(error)))
    return isinstance(error, MemoryError) or failed


@dataclass(eq=False)
class Headroom:
    """`limit_bytes` is the most of computing; 0 is unknown: chunks are not checked. `relieve` makes the pool give
    back.
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
        """As `make`, without the pool."""
        if nbytes <= self.free():
            return True
        _let_go()
        return nbytes <= self.free()

    def chunk(self, position: int, tokens: int, beside: int = 0) -> int:
        """Return how many tokens fit `beside` others, halved until they do. Raises ResourceExhausted."""
        if found := self.most(position, tokens, LEAST_CHUNK, beside):
            return found
        least = min(tokens, LEAST_CHUNK)
        raise self.refusal(f"{least} tokens of the prompt", beside + self.needed(position, least))

    def most(self, position: int, tokens: int, least: int, beside: int = 0) -> int:
        """As `chunk`; 0 if not even `least` fit."""

        def fit(tokens: int) -> bool:
            limit, needed = self.limit_bytes, beside + self.needed(position, tokens)
            if not limit or tokens <= _UNSEEN:
                return True
            return (tokens <= LEAST_CHUNK or needed <= limit) and self.make(needed)

        while tokens > least and not fit(tokens):
            tokens = max(least, tokens // 2)
        return tokens if tokens > least or fit(tokens) else 0

    def recover(self) -> None:
        _let_go()
        self.make(self.limit_bytes)

    def explained(self, error: Exception) -> Exception:
        return self.refusal("the request", self.limit_bytes) if ran_out(error) else error

    def refusal(self, what: str, needed: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"the device's memory is taken: {what} needed about {byte_size(needed)} at once, and "
            f"{byte_size(self.free())} are free; end other processes on the device, or try again"
        )

    def needed(self, position: int, tokens: int) -> int:
        return (self.cost or MeasuredCost(self.limit_bytes)).of(tokens, position)


def _let_go() -> None:
    """CUDA gives buffers back once running kernels have ended."""
    mx.clear_cache()
    wait()
