"""How much computing takes besides weights and KV: of a chunk of a prompt, by its tokens and the keys that they see.

One arithmetic decides which context fits a machine and how long chunks are, before a download and at a load. Pure.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from inference_service.engine.scheduling import largest_chunk, latest_chunks

LEAST_CHUNK: Final = 128
"""Chunks that memory makes shorter have so many tokens at least."""
MARGIN: Final = 1.5
"""An estimate is multiplied by it, because memory is freed late and allocations overlap."""


class Cost(Protocol):
    """Bytes that chunks of one model take."""

    def of(self, tokens: int, position: int) -> int:
        """Return the bytes of a chunk of so many tokens at `position`, its KV not included."""

    def least(self, context_length: int) -> int:
        """Return the bytes without which a context of that length cannot be computed to its end."""

    def most(self, context_length: int) -> int:
        """Return the bytes of the largest chunks, wherever in the context."""


@dataclass(frozen=True)
class EstimatedCost:
    """By the shapes of a network: its widest layer's values for each token, one layer's K and V as arrays for each key,
    and where no fused kernel computes attention, the scores of each pair of both.

    Layers with a sliding window see no more keys than that and a chunk's own. `fixed_bytes` are weights that a chunk
    dequantizes, `step_bytes` those that a decode step of many rows does: the output layer.
    """

    token_bytes: int
    key_bytes: int
    pair_bytes: int = 0
    window: int = 0
    window_key_bytes: int = 0
    window_pair_bytes: int = 0
    fixed_bytes: int = 0
    step_bytes: int = 0

    def of(self, tokens: int, position: int) -> int:
        full = (self.key_bytes + self.pair_bytes * tokens) * (position + tokens)
        seen = min(position, self.window) + tokens if self.window else 0
        sliding = (self.window_key_bytes + self.window_pair_bytes * tokens) * seen
        return self.fixed_bytes + int(MARGIN * (self.token_bytes * tokens + max(full, sliding)))

    def least(self, context_length: int) -> int:
        tokens = min(LEAST_CHUNK, context_length)
        return max(self.step_bytes, self.of(tokens, context_length - tokens))

    def most(self, context_length: int) -> int:
        return max(self.step_bytes, *(self.of(tokens, keys - tokens) for tokens, keys in latest_chunks(context_length)))


@dataclass(frozen=True)
class MeasuredCost:
    """As the largest chunks were measured; a smaller one takes its share of that, and `least_bytes` at least."""

    peak_bytes: int
    least_bytes: int = 0

    def of(self, tokens: int, position: int) -> int:
        return max(self.least_bytes, self.peak_bytes * tokens // largest_chunk(position))

    def least(self, context_length: int) -> int:
        tokens = min(LEAST_CHUNK, context_length)
        return self.of(tokens, context_length - tokens)

    def most(self, context_length: int) -> int:  # noqa: ARG002 - they were measured for one context
        return max(self.least_bytes, self.peak_bytes)
