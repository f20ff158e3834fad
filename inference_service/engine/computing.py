"""Memory that a prompt's chunk takes besides weights and KV. Pure."""

from dataclasses import dataclass
from typing import Final, Protocol

from inference_service.engine.scheduling import largest_chunk, latest_chunks

LEAST_CHUNK: Final = 128
MARGIN: Final = 1.5


class Cost(Protocol):
    def of(self, tokens: int, position: int) -> int:
        """Return the bytes of a chunk of `tokens` tokens at `position`, without its KV."""

    def least(self, context_length: int) -> int:
        """Return the fewest bytes with which a context of that length can be computed."""

    def most(self, context_length: int) -> int:
        """Return the bytes of the largest chunks in the context."""


@dataclass(frozen=True)
class EstimatedCost:
    """Bytes per token of the widest layer's values, per key of its K and V, per pair of scores; `fixed_bytes` are
    dequantized weights, `step_bytes` those of a decode step.
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
    peak_bytes: int
    least_bytes: int = 0

    def of(self, tokens: int, position: int) -> int:
        return max(self.least_bytes, self.peak_bytes * tokens // largest_chunk(position))

    def least(self, context_length: int) -> int:
        tokens = min(LEAST_CHUNK, context_length)
        return self.of(tokens, context_length - tokens)

    def most(self, context_length: int) -> int:  # noqa: ARG002 - they were measured for one context
        return max(self.least_bytes, self.peak_bytes)
