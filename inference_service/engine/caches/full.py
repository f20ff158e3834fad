"""Caches of layers with full attention."""

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from inference_service.engine.caches.buffers import BatchCache, BufferedCache, KVBuffers, missing_tokens
from inference_service.engine.codec import KVCodec
from inference_service.engine.paged.passes import banded, refuse_window


class QuantizedKVCache(BufferedCache):
    """One layer's K and V of one sequence. `offset` is how many tokens it holds. Engine thread only."""

    @classmethod
    def restored(cls, buffers: KVBuffers, codec: KVCodec) -> Self:
        """A cache that takes over buffers [1, kv_heads, capacity, …]."""
        cache = cls(codec)
        cache.buffers = buffers
        return cache

    @property
    def offset(self) -> int:
        """Tokens."""
        return self.buffers.filled

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | str | None:
        """The mask for `n` queries: none is needed for one, and the fused kernel knows "causal".

        Bool [n, total] where an array is asked for, as models with latents do.
        """
        refuse_window(window_size)
        if return_array:
            return banded(n, self.offset + n, self.offset + n)
        return None if n == 1 else "causal"

    def can_trim(self, n: int) -> bool:
        """Whether the last `n` tokens can be forgotten."""
        return n <= self.offset

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens (at most all); how many were forgotten."""
        n = min(n, self.offset)
        self.buffers.filled -= n
        return n

    @staticmethod
    def merge(caches: "Sequence[QuantizedKVCache]") -> "BatchQuantizedKVCache":
        """A batch of one row per cache, copied; one cache alone is shared. All are empty, or none."""
        merged = BatchQuantizedKVCache(missing_tokens(caches), caches[0].codec)
        merged.take_rows(caches)
        return merged


class BatchQuantizedKVCache(BatchCache):
    """One layer's K and V of several sequences. A row's offset is the common write index without the row's padding:
    mixing them up goes unnoticed until the longest row leaves first.
    """

    window = 0
    """There is none."""

    @property
    def offsets(self) -> list[int]:
        """Each row's tokens."""
        return [self.buffers.filled - padding for padding in self.padding]

    @property
    def offset(self) -> mx.array:
        """Each row's tokens, int32 [rows]."""
        return mx.array(self.offsets)

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Bool [rows, 1, n, total] for the next `n` tokens of all rows; none for one token without padding.

        Of these, padding sees the padding before it.
        """
        refuse_window(window_size)
        if n == 1 and not any(self.padding) and not return_array:
            return None
        total = self.buffers.filled + n
        keys, queries = mx.arange(total), mx.arange(total - n, total)[:, None]
        padding = mx.array(self.padding)[:, None, None, None]
        return ((keys >= padding) | (queries < padding)) & (queries >= keys)

    def extract(self, row: int) -> QuantizedKVCache:
        """One row, without its padding."""
        return QuantizedKVCache.restored(self.buffers.row(row, self.padding[row]), self.codec)
