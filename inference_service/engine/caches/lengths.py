"""How many tokens a sequence's caches hold: checked, and cut to fewer. Engine thread."""

from collections.abc import Sequence
from typing import Any

from inference_service.engine.caches.full import QuantizedKVCache


class CacheLengthError(Exception):
    """A cache does not hold what it should; drop it and compute it again from the ledger."""


def trim_to(caches: Sequence[Any], tokens: int) -> None:
    """Trim the caches to exactly `tokens` tokens.

    Where a window before that is gone, or a recurrent state is behind it, these layers forget all: others' KV is good,
    and the next turn goes on from a checkpoint before. Raises CacheLengthError for caches that hold no one sequence.
    """
    if not caches:
        raise CacheLengthError("there are no caches")
    check_lengths(caches, caches[0].offset)
    surplus = max(0, caches[0].offset - tokens)
    whole = all(cache.can_trim(surplus) for cache in caches)
    for cache in caches:
        if whole or isinstance(cache, QuantizedKVCache):
            cache.trim(surplus)
        else:
            cache.forget(tokens)
    check_lengths(caches, tokens)


def check_lengths(caches: Sequence[Any], tokens: int) -> None:
    """Raise CacheLengthError unless every layer holds `tokens` tokens."""
    lengths = {int(cache.offset) for cache in caches}
    if lengths != {tokens}:
        raise CacheLengthError(f"layers hold {sorted(lengths)} tokens instead of {tokens}")
