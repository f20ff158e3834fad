"""Distances of a long prompt's checkpoints, and which an agent keeps. Pure.

With checkpoints of S bytes d >= S / b tokens apart, b bytes of KV a token, all of a conversation's are at most as many
bytes as its blocks, and one is read as fast as d tokens' blocks: no speed is needed, so agents find each other's.

Distances are STEP times powers of two, so positions of larger ones are shared.
"""

from collections.abc import Iterable

from agentmem.kv.blockfile import BLOCK_TOKENS

STEP = 8 * BLOCK_TOKENS
"""The largest chunk of prefill."""
MOST_BETWEEN = 3
"""A turn holds them all in memory."""
_LAST = 2


def checkpoint_distance(checkpoint_bytes: int, token_bytes: int) -> int:
    """0 for a model without any."""
    if not checkpoint_bytes:
        return 0
    distance = STEP
    while token_bytes and distance * token_bytes < checkpoint_bytes:
        distance *= 2
    return distance


def spacing(distance: int, tokens: int) -> int:
    while tokens // distance > MOST_BETWEEN:
        distance *= 2
    return distance


def periodic_positions(distance: int, tokens: int) -> tuple[int, ...]:
    if not distance:
        return ()
    step = spacing(distance, tokens)
    return tuple(range(step, tokens, step))


def kept_positions(positions: Iterable[int], distance: int) -> tuple[int, ...]:
    """Return the first that others may share, the last two, and the first of each stretch of `spacing` tokens."""
    each = sorted(set(positions))
    if not each:
        return ()
    step = spacing(distance, each[-1])
    own = next((at for at in each if at % distance), each[0])
    firsts = (at for at in firsts_of_stretches(each, step) if at >= step)
    return tuple(sorted({own, *each[-_LAST:], *firsts}))


def firsts_of_stretches(positions: Iterable[int], step: int = STEP) -> list[int]:
    found: dict[int, int] = {}
    for position in positions:
        found.setdefault(position // step, position)
    return list(found.values())
