"""Caches as arrays, for layers that attend themselves (DeepSeek V3, Gemma 2, StableLM): the layer sees what the cache
keeps, dequantized.
"""

from typing import Any

import mlx.core as mx

from inference_service.engine.paged.passes import StatesCache


class View:
    """`keys` and `values` are the last result, for layers that share this KV. Engine thread only."""

    def __init__(self, cache: Any) -> None:
        self.cache: Any = cache
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.start_position = 0
        """The first token shown, for chunked attention."""

    @property
    def offset(self) -> Any:
        """int; int32 [T] for rows."""
        return self.cache.offset

    def maybe_trim_front(self) -> None:
        """Show at most window - 1 tokens before the new ones."""
        self.start_position = max(0, self.offset - self.cache.window + 1) if self.offset else 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return all that a query sees. Of indexers, whose K is V or whose V has no width, halves of K are kept."""
        if halved := keys is values or not values.shape[-1]:
            keys, values = mx.split(keys, 2, axis=-1)
        k, v = self.cache.fetch_arrays(keys, values)
        k, v = k[..., : keys.shape[-1]], v[..., : values.shape[-1]]
        if halved:
            k = v = mx.concatenate([k, v], axis=-1)
        self.keys, self.values = k, v
        return k, v

    def keys_and_values(self) -> tuple[mx.array | None, mx.array | None]:
        return self.keys, self.values

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Return bool [n, total], or [T, 1, 1, total] for rows."""
        mask: mx.array | None = self.cache.arrays_mask(n, window_size, return_array=return_array)
        return mask


def viewed(caches: Any) -> list[Any]:
    return [cache if isinstance(cache, StatesCache) else View(cache) for cache in caches]
