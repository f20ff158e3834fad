"""How many tokens to prefill at once. Pure."""

_STEPS = ((8_192, 2_048), (20_480, 1_024))
SMALLEST_STEP = 512
LARGEST_CHUNK = max(size for _, size in _STEPS)
_ROUND = 256

SECONDS_WHILE_OTHERS_DECODE = 0.25
"""No stream stalls longer than a chunk."""
SECONDS_ALONE = 0.5
"""Nobody's stream stalls; but a request that arrives waits for a layer of the chunk, which is a share of this."""


def latest_chunks(context_length: int) -> list[tuple[int, int]]:
    """For each size of chunk: its tokens, and the keys that it sees at most, its own included."""
    steps = [*((size, below + size) for below, size in _STEPS), (SMALLEST_STEP, context_length)]
    return [(min(size, context_length), min(end, context_length)) for size, end in steps]


def chunk_tokens(position: int, tokens_per_second: float, max_seconds: float = SECONDS_WHILE_OTHERS_DECODE) -> int:
    """Tokens of the next prefill chunk at `position`.

    Bounded by memory: 2048 below position 8K, 1024 below 20K, 512 beyond; and by time: what `tokens_per_second` does in
    `max_seconds`, in steps of 256 and at least 256. A speed of 0 is unknown. The paper's table begins with 4096 below
    2K; on an H100 that chunk took twice the memory (12.3 GB over an 8B Llama's weights, instead of 6.6) and no less
    time.
    """
    by_memory = next((size for below, size in _STEPS if position < below), SMALLEST_STEP)
    if tokens_per_second <= 0:
        return min(by_memory, SMALLEST_STEP)
    by_time = int(tokens_per_second * max_seconds) // _ROUND * _ROUND
    return max(_ROUND, min(by_memory, by_time))
