"""Caches of layers with a sliding window: never more than window + 256 tokens of a sequence, in temporal order.

Positions in a buffer (T tokens stored, window W, slack 256):

    0 … T - W        older than the window: masked, kept so that small trims stay possible
    T - W … T        what the next query may see, with itself
    T > W + 256      cannot be: what would be is cut to the last W tokens before more is written

mlx-lm's RotatingKVCache overwrites in a ring instead; then masks depend on where the ring stands, and nothing can be
trimmed once it is full.
"""

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from inference_service.engine.caches.buffers import BatchCache, BufferedCache, KVBuffers, missing_tokens
from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import Quantized

SLACK = 256


class _Sliding(BufferedCache):
    """What one sequence and a batch have in common: how tokens are written and dropped."""

    window: int

    def _kept_before(self, n: int) -> int:
        """How many of the stored tokens stand before the next `n` in what attention sees."""
        stored = self.buffers.filled
        return stored if stored + n <= self.window + SLACK else min(stored, self.window)

    def _drop_before(self, n: int) -> int:
        """Drop what the next `n` tokens do not see, if there would be too many; how many were dropped."""
        before = self._kept_before(n)
        dropped = self.buffers.filled - before
        if dropped:
            self.buffers = self.buffers.last(before)
        return dropped

    def _append(self, keys: mx.array, values: mx.array) -> tuple[tuple[Quantized, Quantized], int]:
        """Write K and V [rows, kv_heads, n, …].

        Returns what attention sees, and how many tokens were dropped from the front of the buffers.
        """
        new = self.quantized(keys, values)
        dropped = self._drop_before(keys.shape[2])
        self.buffers.append(*new)
        seen = self.buffers.view()
        most = self.window + SLACK
        if self.buffers.filled > most:
            dropped += self.buffers.filled - most
            self.buffers = self.buffers.last(most)
        return seen, dropped


class SlidingQuantizedKVCache(_Sliding):
    """One sliding layer's K and V of one sequence. `offset` is the sequence's length. Engine thread only."""

    def __init__(self, window: int, codec: KVCodec | None = None) -> None:
        super().__init__(codec)
        self.window = window
        self.offset = 0

    @classmethod
    def restored(cls, window: int, buffers: KVBuffers, offset: int, codec: KVCodec) -> Self:
        """A cache that takes over buffers [1, kv_heads, capacity, …] of the last tokens before `offset`."""
        cache = cls(window, codec)
        cache.buffers, cache.offset = buffers, offset
        return cache

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Append K [1, kv_heads, n, k_dim] and V [1, kv_heads, n, v_dim].

        Returns K and V of the window before them and of themselves, quantized.
        """
        seen, _ = self._append(keys, values)
        self.offset += keys.shape[2]
        return seen

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Bool [n, total] for the next `n` tokens; none for one token that sees all that is stored."""
        if window_size not in (None, self.window):
            raise ValueError(f"the layer's window is {self.window}, not {window_size}")
        total = self._kept_before(n) + n
        if n == 1 and total <= self.window and not return_array:
            return None
        return banded(n, total, self.window)

    def can_trim(self, n: int) -> bool:
        """Whether the tokens that a query after the trim may see are all here."""
        start = self.offset - self.buffers.filled
        return n <= self.offset and start <= max(0, self.offset - n - self.window)

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens. Raises ValueError where `can_trim` says no."""
        if not self.can_trim(n):
            raise ValueError(f"{n} tokens cannot be trimmed: the window before them is gone")
        self.buffers.filled -= n
        self.offset -= n
        return n

    def forget(self, tokens: int) -> None:
        """Hold nothing of a sequence of so many tokens, from which nobody can go on here."""
        self.buffers, self.offset = KVBuffers(), tokens

    @staticmethod
    def merge(caches: "Sequence[SlidingQuantizedKVCache]") -> "BatchSlidingQuantizedKVCache":
        """A batch of one row per cache, copied; one cache alone is shared. All are empty, or none."""
        first = caches[0]
        merged = BatchSlidingQuantizedKVCache(first.window, missing_tokens(caches), first.codec)
        merged.offsets = [cache.offset for cache in caches]
        merged.take_rows(caches)
        return merged


class BatchSlidingQuantizedKVCache(_Sliding, BatchCache):
    """One sliding layer's K and V of several sequences; `offsets` are their lengths."""

    def __init__(self, window: int, padding: Sequence[int], codec: KVCodec | None = None) -> None:
        BatchCache.__init__(self, padding, codec)
        self.window = window
        self.offsets = [0] * len(self.padding)

    @property
    def offset(self) -> mx.array:
        """Each row's length, int32 [rows]."""
        return mx.array(self.offsets)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Append K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim].

        Returns K and V of the window before them and of themselves, quantized.
        """
        seen, dropped = self._append(keys, values)
        self._count(keys.shape[2], dropped)
        return seen

    def make_room(self) -> None:
        """As of full attention; what the next token does not see may be dropped."""
        if dropped := self._drop_before(1):
            self._count(0, dropped)
        self.buffers.reserve(1)

    def written(self, arrays: Sequence[mx.array]) -> None:
        """As of full attention."""
        super().written(arrays)
        self._count(1, 0)

    def trim(self, tokens: int) -> None:
        """As of full attention; what was dropped before these tokens were written, the ones that stay do not see."""
        super().trim(tokens)
        self._count(-tokens, 0)

    def _count(self, tokens: int, dropped: int) -> None:
        self.padding = [max(0, padding - dropped) for padding in self.padding]
        self.offsets = [offset + tokens for offset in self.offsets]

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Bool [rows, 1, n, total] for the next `n` tokens of all rows; none where one token sees all."""
        if window_size not in (None, self.window):
            raise ValueError(f"the layer's window is {self.window}, not {window_size}")
        before = self._kept_before(n)
        padding = [max(0, each - (self.buffers.filled - before)) for each in self.padding]
        total = before + n
        if n == 1 and total <= self.window and not any(padding) and not return_array:
            return None
        return banded(n, total, self.window) & (mx.array(padding)[:, None, None, None] <= mx.arange(total))

    def filter(self, rows: Sequence[int]) -> None:
        """Keep only some rows; padding that none of them needs goes away."""
        self.offsets = [self.offsets[row] for row in rows]
        super().filter(rows)

    def extend(self, other: Self) -> None:
        """Take in the rows of another batch."""
        self.offsets += other.offsets
        super().extend(other)

    def extract(self, row: int) -> SlidingQuantizedKVCache:
        """One row, without its padding."""
        buffers = self.buffers.row(row, self.padding[row])
        return SlidingQuantizedKVCache.restored(self.window, buffers, self.offsets[row], self.codec)


def banded(n: int, total: int, window: int) -> mx.array:
    """Bool [n, total]: the last `n` of `total` positions each see themselves and the window - 1 before them."""
    queries, keys = mx.arange(total - n, total)[:, None], mx.arange(total)[None]
    return (queries >= keys) & (queries < keys + window)
