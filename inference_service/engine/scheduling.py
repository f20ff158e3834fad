"""Which prompt is next, and how much of it. Pure."""

from typing import NamedTuple

AGING_TOKENS = 64
"""For each step of waiting."""


def rank(remaining_tokens: int, waited_steps: int) -> int:
    """The prompt with the least is next."""
    return remaining_tokens - AGING_TOKENS * waited_steps


_STEPS = ((8_192, 2_048), (20_480, 1_024))
SMALLEST_STEP = 512
_ROUND = 256
SMALLEST_CHUNK = _ROUND

SECONDS_WHILE_OTHERS_DECODE = 0.25
SECONDS_ALONE = 0.5
"""A new request waits for a layer of it."""
SECONDS_OF_A_LAYER = 0.05
"""DeepSeek-V2-Lite (H200) took 1.08 times as long as mlx-lm in chunks of 768, 1.015 in one."""


_UNMEASURED_OPERATIONS = 5e11
"""A layer's, for half a second of a Mac that does 1 of its 2.6 TFLOP/s. macOS ends work of seconds."""
FEWEST_TOKENS = 64
"""At any speed."""


class LayerWork(NamedTuple):
    """A layer's weights, and a token's values of queries and outputs of all heads."""

    weights: int = 0
    attention: int = 0

    def unmeasured_tokens(self, position: int) -> int:
        operations = 2 * (self.weights + self.attention * (position + SMALLEST_STEP))
        tokens = int(_UNMEASURED_OPERATIONS / max(1, operations))
        return max(FEWEST_TOKENS, tokens // FEWEST_TOKENS * FEWEST_TOKENS)


def distance(position: int) -> int:
    """Return the class of positions with similar speeds."""
    return (position // SMALLEST_STEP // 16).bit_length()


def latest_chunks(context_length: int) -> list[tuple[int, int]]:
    steps = [*((size, below + size) for below, size in _STEPS), (SMALLEST_STEP, context_length)]
    return [(min(size, context_length), min(end, context_length)) for size, end in steps]


def largest_chunk(position: int) -> int:
    """By memory: 4096 below 2K took twice as much on an H100, and no less time."""
    return next((size for below, size in _STEPS if position < below), SMALLEST_STEP)


def chunk_tokens(position: int, tokens_per_second: float, max_seconds: float = SECONDS_WHILE_OTHERS_DECODE) -> int:
    """By memory, and by what `tokens_per_second` (0 if unknown) does in `max_seconds`."""
    by_memory = largest_chunk(position)
    if tokens_per_second <= 0:
        return min(by_memory, SMALLEST_STEP)
    by_time = int(tokens_per_second * max_seconds) // _ROUND * _ROUND
    return max(_ROUND, min(by_memory, by_time))
