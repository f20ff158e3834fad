"""Memory that a prompt's chunk takes besides weights and KV. Pure: the same arithmetic decides which context fits,
before a download and at load.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from inference_service.engine.scheduling import largest_chunk, latest_chunks

LEAST_CHUNK: Final = 128
"""Tokens of a chunk that is cut for lack of memory."""
MARGIN: Final = 1.5
"""Factor on an estimate: memory is freed late."""


class Cost(Protocol):
    def of(self, tokens: int, position: int) -> int:
        """Return the bytes of a chunk of `tokens` tokens at `position`, without its KV."""

    def least(self, context_length: int) -> int:
        """Return the fewest bytes with which a context of that length can be computed."""

    def most(self, context_length: int) -> int:
        """Return the bytes of the largest chunks in the context."""


@dataclass(frozen=True)
class EstimatedCost:
    """Bytes per token by the widest layer's values, per key by a layer's K and V as arrays, per pair of both by scores.

    `fixed_bytes` are weights that a chunk dequantizes, `step_bytes` those of a decode step of many rows.
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
    """A smaller chunk takes its share, at least `least_bytes`."""

    peak_bytes: int
    least_bytes: int = 0

    def of(self, tokens: int, position: int) -> int:
        return max(self.least_bytes, self.peak_bytes * tokens // largest_chunk(position))

    def least(self, context_length: int) -> int:
        tokens = min(LEAST_CHUNK, context_length)
        return self.of(tokens, context_length - tokens)

    def most(self, context_length: int) -> int:  # noqa: ARG002 - they were measured for one context
        return max(self.least_bytes, self.peak_bytes)
