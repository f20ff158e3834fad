"""Quantized caches as the arrays that they stand for, for layers that compute attention by themselves.

Attention of DeepSeek V3's latents, of Gemma 2's capped scores or of StableLM in float32 wants K and V as arrays, where
all others read them packed through `engine.attention`. A `View` takes a cache's place while the model is called: the
cache keeps what it always keeps, and the layer sees it dequantized. That costs a layer's K and V in the compute dtype
for as long as the layer is computed.
"""

from typing import Any

import mlx.core as mx

from inference_service.engine.caches.buffers import BufferedCache
from inference_service.engine.caches.full import QuantizedKVCache
from inference_service.engine.caches.sliding import banded


class View:
    """One layer's cache for one call of the model. Engine thread only.

    `keys` and `values` are what the last `update_and_fetch` returned: layers that share a layer's KV read them there.
    """

    def __init__(self, cache: Any) -> None:
        self.cache: Any = cache
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> Any:
        """As the cache's: tokens, or those of each row."""
        return self.cache.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim]; all that a query sees, dequantized."""
        shown = self.cache.update_and_fetch(keys, values)
        k, v = self.cache.codec.decode(*shown)
        self.keys, self.values = k[..., : keys.shape[-1]], v[..., : values.shape[-1]]
        return self.keys, self.values

    def keys_and_values(self) -> tuple[mx.array | None, mx.array | None]:
        """What the last `update_and_fetch` returned."""
        return self.keys, self.values

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Bool [n, total], or [rows, 1, n, total] of a batch; None where one query sees all. Never a name."""
        if not isinstance(self.cache, QuantizedKVCache):
            own = getattr(self.cache, "window", None)
            mask: mx.array | None = self.cache.make_mask(n, own and window_size, return_array=return_array)
            return mask
        total = self.cache.offset + n
        if n == 1 and not return_array and (window_size is None or total <= window_size):
            return None
        return banded(n, total, window_size or total)

    def size(self) -> int:
        """Tokens stored, padding included."""
        return int(self.cache.size())


def viewed(caches: Any) -> list[Any]:
    """Views of those that are quantized; the others as they are."""
    return [View(cache) if isinstance(cache, BufferedCache) else cache for cache in caches]
