"""The engine's decisions: whose prompt is next, how much of it at once, and which rows decode together. Pure.

A batch is padded to its longest row, so a long row makes short ones take its length; a further group reads the weights
once more in every step. Lengths are tokens; bytes are those of the full-attention layers, since sliding layers hold no
more than their window and some slack.
"""

from collections.abc import Sequence
from typing import NamedTuple

from inference_service.engine.caches.buffers import STEP

AGING_TOKENS = 64
"""Every step of waiting counts as so many tokens less to do, so that a long prompt is not passed over for ever."""


class Waiting(NamedTuple):
    """A prompt that is not computed yet: tokens left, and steps since its last chunk."""

    remaining_tokens: int
    waited_steps: int


def next_prompt(waiting: Sequence[Waiting]) -> int:
    """The index of the prompt with the least left to do, aging counted; of equals the first. There must be one."""
    return min(range(len(waiting)), key=lambda i: waiting[i].remaining_tokens - AGING_TOKENS * waiting[i].waited_steps)


Groups = tuple[tuple[int, ...], ...]
"""Indices of rows: of each row once. Shorter rows come before longer ones, and of equals the first is first."""


def split(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> Groups:
    """The groups whose steps read least: per group the weights, and for each of its rows its longest row's KV.

    All rows grow by one token a step, which costs every split the same; so a split stays the best one until a row
    joins or leaves. Of splits that cost the same it is the one of fewest groups.
    """
    return _best(lengths, token_bytes, weight_bytes)[1]


def most_batch_bytes(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> int:
    """The most that the batches take as long as no row is longer than here, whichever of the rows run.

    What `split` minimizes grows with every length and every row, so at all times it is at most what it is here; take
    off the weights, of which every split reads at least one set, and what is left bounds the batches. It is no more
    than one padded batch of all the rows, and above what the groups take at these lengths by a set of weights for each
    group but the first. What they take would be no bound: shorter rows can take more, in one group, than longer ones in
    two.
    """
    if not lengths:
        return 0
    cost, _ = _best(lengths, token_bytes, weight_bytes)
    return cost - weight_bytes + len(lengths) * (STEP - 1) * token_bytes


def _best(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> tuple[int, Groups]:
    """The least bytes that a step reads, and the groups; dynamic programming over the rows by length."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    least: list[tuple[int, int, int]] = [(0, 0, 0)]  # of the first n rows: bytes, groups, where the last group starts
    for end, row in enumerate(order, 1):
        costs = (
            (least[start][0] + weight_bytes + (end - start) * lengths[row] * token_bytes, least[start][1] + 1, start)
            for start in range(end)
        )
        least.append(min(costs))
    groups: list[tuple[int, ...]] = []
    end = len(order)
    while end:
        start = least[end][2]
        groups.append(tuple(order[start:end]))
        end = start
    return least[-1][0], tuple(reversed(groups))


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
