"""How far apart a long prompt leaves checkpoints, and which of an agent's are kept. Pure.

A checkpoint is S bytes whatever its position, and KV in blocks is b bytes a token. A prompt that leaves a conversation
between two checkpoints, d tokens apart, computes at most d tokens again. With d of at least S / b

- all checkpoints of a conversation are at most as many bytes as its blocks;
- to write and to read one takes no longer than to write and to read the blocks of d tokens. So where a disk gives KV
  back faster than a device computes it, which is what KV is kept for, a checkpoint is worth its bytes, too. No speed is
  needed to decide that, and the positions depend on the model and the prompt alone: agents find each other's.

Distances are STEP times powers of two, so that positions of a larger one are positions of all smaller ones, and whoever
looks needs not know which it was. Chunks of prefill end there; most sizes of chunks divide STEP, so that few are cut.
"""

from collections.abc import Iterable

from agentmem.kv.blockfile import BLOCK_TOKENS

STEP = 8 * BLOCK_TOKENS
"""The least distance: as many tokens as the largest chunk of prefill."""
MOST_BETWEEN = 3
"""Checkpoints of a prompt besides those at its ends: a turn holds them all in memory until it is over."""
_LAST = 2


def checkpoint_distance(checkpoint_bytes: int, token_bytes: int) -> int:
    """Return how many tokens are between two checkpoints of a short prompt; 0 for a model that has none.

    `token_bytes` are those of a token's KV in blocks; 0 without full attention.
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
    """Return which of its checkpoints an agent keeps, in order.

    The first that is where a prompt has it and not on the way: other agents may share that. The last two. And of each
    stretch of `spacing` tokens, but for the beginning, the first: on its way, or where a turn ended that was short.
    """
    each = sorted(set(positions))
    if not each:
        return ()
    step = spacing(distance, each[-1])
    own = next((at for at in each if at % distance), each[0])
    firsts = (at for at in firsts_of_stretches(each, step) if at >= step)
    return tuple(sorted({own, *each[-_LAST:], *firsts}))


def firsts_of_stretches(positions: Iterable[int], step: int = STEP) -> list[int]:
    """Return, of increasing positions, the first in each stretch of `step` tokens.

    The first of a stretch of more steps is among them.
    """
    found: dict[int, int] = {}
    for position in positions:
        found.setdefault(position // step, position)
    return list(found.values())
