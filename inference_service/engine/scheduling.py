"""The engine's decisions: whose prompt is next, and how much of it at once. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

AGING_TOKENS = 64
"""Every step of waiting counts as so many tokens less to do, so that a long prompt is not passed over for ever."""


class Waiting(NamedTuple):
    """A prompt that is not computed yet: tokens left, and steps since its last chunk."""

    remaining_tokens: int
    waited_steps: int


def next_prompt(waiting: Sequence[Waiting]) -> int:
    """The index of the prompt with the least left to do, aging counted; of equals the first. There must be one."""
    return min(range(len(waiting)), key=lambda i: waiting[i].remaining_tokens - AGING_TOKENS * waiting[i].waited_steps)


_STEPS = ((8_192, 2_048), (20_480, 1_024))
SMALLEST_STEP = 512
LARGEST_CHUNK = max(size for _, size in _STEPS)
_ROUND = 256
SMALLEST_CHUNK = _ROUND

SECONDS_WHILE_OTHERS_DECODE = 0.25
"""No stream stalls longer than a chunk."""
SECONDS_ALONE = 0.5
"""No stream stalls; but a request that arrives waits for a layer of the chunk, which is a share of this."""
SECONDS_OF_A_LAYER = 0.05
"""A chunk may also take so long for each layer. Models of many layers and experts, which each chunk reads, so have
long ones: of DeepSeek-V2-Lite on an H200 chunks of 768 tokens made a prompt of 2,048 take 1.08 times as long as mlx-lm,
and chunks of 2,048 take 1.015 times as long."""


def latest_chunks(context_length: int) -> list[tuple[int, int]]:
    """For each size of chunk: its tokens, and the keys that it sees at most, its own included."""
    steps = [*((size, below + size) for below, size in _STEPS), (SMALLEST_STEP, context_length)]
    return [(min(size, context_length), min(end, context_length)) for size, end in steps]


def largest_chunk(position: int) -> int:
    """Tokens of a prefill chunk at `position`, as far as memory bounds them: 2048 below position 8K, 1024 below 20K,
    512 beyond.

    The paper's table begins with 4096 below 2K; on an H100 that chunk took twice the memory (12.3 GB over an 8B Llama's
    weights, instead of 6.6) and no less time.
    """
    return next((size for below, size in _STEPS if position < below), SMALLEST_STEP)


def chunk_tokens(position: int, tokens_per_second: float, max_seconds: float = SECONDS_WHILE_OTHERS_DECODE) -> int:
    """Tokens of the next prefill chunk at `position`.

    Bounded by memory, and by time: what `tokens_per_second` does in `max_seconds`, in steps of 256 and at least 256. A
    speed of 0 is unknown.
    """
    by_memory = largest_chunk(position)
    if tokens_per_second <= 0:
        return min(by_memory, SMALLEST_STEP)
    by_time = int(tokens_per_second * max_seconds) // _ROUND * _ROUND
    return max(_ROUND, min(by_memory, by_time))
