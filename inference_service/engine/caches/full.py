"""Caches of layers with full attention."""

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from inference_service.engine.caches.buffers import BufferedCache, KVBuffers, Quantized


class QuantizedKVCache(BufferedCache):
    """One layer's K and V of one sequence. `offset` is how many tokens it holds. Engine thread only."""

    def __init__(self, bits: int = 4, group_size: int = 64) -> None:
        super().__init__(bits, group_size)

    @classmethod
    def restored(cls, buffers: KVBuffers, bits: int, group_size: int) -> Self:
        """A cache that takes over buffers."""
        cache = cls(bits, group_size)
        cache.buffers = buffers
        return cache

    @property
    def offset(self) -> int:
        """Tokens."""
        return self.buffers.filled

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Append K [1, kv_heads, n, k_dim] and V [1, kv_heads, n, v_dim]; a view of all of both, quantized."""
        self.buffers.append(*self.quantized(keys, values))
        return self.buffers.view()

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> str | None:
        """The mask for `n` queries: none is needed for one, and the fused kernel knows "causal"."""
        if window_size is not None or return_array:
            raise NotImplementedError("a full-attention cache has no windowed or explicit mask")
        return None if n == 1 else "causal"

    def is_trimmable(self) -> bool:
        """Always."""
        return True

    def can_trim(self, n: int) -> bool:
        """Whether the last `n` tokens can be forgotten."""
        return n <= self.offset

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens (at most all); how many were forgotten."""
        n = min(n, self.offset)
        self.buffers.filled -= n
        return n

    @classmethod
    def merge(cls, caches: "Sequence[QuantizedKVCache]") -> "BatchQuantizedKVCache":
        """A batch of one row per cache."""
        return BatchQuantizedKVCache.merge(caches)


class BatchQuantizedKVCache(BufferedCache):
    """One layer's K and V of several sequences, left-padded so that all end at the same index.

    The write index is common (`buffers.filled`), the offset is each row's own, and padding is the difference: mixing
    them up goes unnoticed until the longest row leaves first. Engine thread only.
    """

    def __init__(self, left_padding: Sequence[int], bits: int = 4, group_size: int = 64) -> None:
        super().__init__(bits, group_size)
        self.padding = list(left_padding)
        self._right_padding: list[int] | None = None

    @classmethod
    def merge(cls, caches: Sequence[QuantizedKVCache]) -> Self:
        """A batch of one row per cache, copied; one cache alone is shared."""
        longest = max(cache.offset for cache in caches)
        merged = cls([longest - cache.offset for cache in caches], caches[0].bits, caches[0].group_size)
        filled = [cache for cache in caches if not cache.empty()]
        if filled and len(filled) != len(caches):
            raise ValueError("an empty cache cannot join filled ones")
        if len(filled) == 1:
            merged.buffers = filled[0].buffers.shared()
        elif filled:
            merged.buffers = KVBuffers.stacked(cache.buffers for cache in caches)
        return merged

    @property
    def offset(self) -> mx.array:
        """Each row's tokens, int32 [rows]."""
        return mx.array(self.offsets)

    @property
    def offsets(self) -> list[int]:
        """Each row's tokens."""
        return [self.buffers.filled - padding for padding in self.padding]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Append K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim]; a view of all of both, quantized."""
        self.buffers.append(*self.quantized(keys, values))
        return self.buffers.view()

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Bool [rows, 1, n, total] for the next `n` tokens of all rows; none for one token without padding."""
        if window_size is not None:
            raise NotImplementedError("a full-attention cache has no windowed mask")
        if n == 1 and not any(self.padding) and not return_array:
            return None
        total = self.buffers.filled + n
        positions = mx.arange(total)
        visible = mx.array(self.padding)[:, None, None, None] <= positions
        return visible & (mx.arange(total - n, total)[:, None] >= positions)

    def prepare(
        self,
        *,
        left_padding: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,  # noqa: ARG002 - part of mlx-lm's protocol
        right_padding: Sequence[int] | None = None,
    ) -> None:
        """Tell that the tokens that follow are padded on the left (only before the first) or on the right."""
        if left_padding is not None:
            if self.buffers.keys is not None:
                raise ValueError("left padding can only be added to an empty cache")
            self.padding = [a + b for a, b in zip(self.padding, left_padding, strict=True)]
        if right_padding is not None and any(right_padding):
            self._right_padding = list(right_padding)

    def finalize(self) -> None:
        """Move right padding to the left: each row rolls by its own."""
        if self._right_padding is None:
            return
        shifts, self._right_padding = self._right_padding, None
        order = (mx.arange(self.buffers.filled)[None] - mx.array(shifts)[:, None]) % self.buffers.filled
        end = self.buffers.filled

        def roll(part: Quantized) -> Quantized:
            return part.between(0, end).map(lambda a: mx.take_along_axis(a, order[:, None, :, None], axis=2))

        self.buffers = self.buffers.map(roll, end)
        self.padding = [padding + shift for padding, shift in zip(self.padding, shifts, strict=True)]

    def filter(self, rows: Sequence[int]) -> None:
        """Keep only some rows; padding that none of them needs goes away."""
        self.padding = [self.padding[row] for row in rows]
        spare = min(self.padding)
        if not self.buffers.filled:
            return
        self.buffers = self.buffers.rows(rows)
        if spare:
            self.buffers = self.buffers.last(self.buffers.filled - spare)
            self.padding = [padding - spare for padding in self.padding]

    def extend(self, other: Self) -> None:
        """Take in the rows of another batch."""
        longest = max(self.buffers.filled, other.buffers.filled)
        padding = []
        for cache in (self, other):
            missing = longest - cache.buffers.filled
            padding += [missing + each for each in cache.padding]
        if longest:
            self.buffers = KVBuffers.stacked(cache.buffers for cache in (self, other))
        self.padding = padding

    def extract(self, row: int) -> QuantizedKVCache:
        """One row, without its padding."""
        cache = QuantizedKVCache(self.bits, self.group_size)
        cache.buffers = self.buffers.row(row, self.padding[row])
        return cache

    def is_trimmable(self) -> bool:
        """Always."""
        return True

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens of every row."""
        n = min(n, self.buffers.filled)
        self.buffers.filled -= n
        return n
