"""How far apart a long prompt leaves checkpoints, and which of an agent's are kept. Pure.

A checkpoint is S bytes, KV in blocks is b bytes a token. With checkpoints d >= S / b tokens apart

- all checkpoints of a conversation are at most as many bytes as its blocks;
- one is written and read as fast as the blocks of d tokens: worth its bytes wherever KV is. No speed is needed to
  decide that, so agents find each other's.

Distances are STEP times powers of two: positions of a larger one are positions of all smaller ones.
"""

from collections.abc import Iterable

from agentmem.kv.blockfile import BLOCK_TOKENS

STEP = 8 * BLOCK_TOKENS
"""The least distance: as many tokens as the largest chunk of prefill."""
MOST_BETWEEN = 3
"""Checkpoints of a prompt besides those at its ends: a turn holds them all in memory."""
_LAST = 2


def checkpoint_distance(checkpoint_bytes: int, token_bytes: int) -> int:
    """Return the tokens between two checkpoints of a short prompt; 0 for a model that has none. `token_bytes` are those
    of a token's KV in blocks; 0 without full attention.
    """
    if not checkpoint_bytes:
        return 0
    distance = STEP
    while token_bytes and distance * token_bytes < checkpoint_bytes:
        distance *= 2
    return distance


def spacing(distance: int, tokens: int) -> int:
    """Return the distance in a sequence of so many tokens: doubled until there are few."""
    while tokens // distance > MOST_BETWEEN:
        distance *= 2
    return distance


def periodic_positions(distance: int, tokens: int) -> tuple[int, ...]:
    """Return where a prompt of so many tokens leaves checkpoints on its way, in order."""
    if not distance:
        return ()
    step = spacing(distance, tokens)
    return tuple(range(step, tokens, step))


def kept_positions(positions: Iterable[int], distance: int) -> tuple[int, ...]:
    """Return which of its checkpoints an agent keeps, in order: the first that other agents may share, the last two,
    and the first of each stretch of `spacing` tokens.
    """
    each = sorted(set(positions))
    if not each:
        return ()
    step = spacing(distance, each[-1])
    own = next((at for at in each if at % distance), each[0])
    firsts = (at for at in firsts_of_stretches(each, step) if at >= step)
    return tuple(sorted({own, *each[-_LAST:], *firsts}))


def firsts_of_stretches(positions: Iterable[int], step: int = STEP) -> list[int]:
    """Return, of increasing positions, the first in each stretch of `step` tokens."""
    found: dict[int, int] = {}
    for position in positions:
        found.setdefault(position // step, position)
    return list(found.values())
