"""Caches of layers with a sliding window: never more than window + 512 tokens of a sequence, in temporal order.

Positions in a buffer (T tokens stored, window W):

    0 … T - W - 256        older than a checkpoint needs: cut off once there are 256 of them
    T - W - 256 … T - W    older than the window: not shown to attention, kept so that small trims stay possible
    T - W … T              what the next query may see, with itself

A sequence of at least W + 256 tokens has as many stored, whatever the chunks in which they were written; only a trim
leaves fewer, until as many are written again.

mlx-lm's RotatingKVCache overwrites in a ring instead; then masks depend on where the ring stands, and nothing can be
trimmed once it is full.
"""

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from inference_service.engine.caches.buffers import STEP, BatchCache, BufferedCache, KVBuffers, missing_tokens
from inference_service.engine.codec import KVCodec
from inference_service.engine.paged.passes import banded, refuse_window
from inference_service.engine.quantization import Quantized

SLACK = 256
"""Tokens older than the window that a checkpoint has: it serves positions so far before its own."""
MOST = SLACK + STEP
"""Tokens older than the window that a cache has at most. To cut it copies it, which is not done for every token."""


class _Sliding(BufferedCache):
    """What one sequence and a batch have in common: how tokens are written and dropped."""

    window: int

    @property
    def kept(self) -> int:
        """How many of the stored tokens, the last ones, a checkpoint has."""
        return min(self.buffers.filled, self.window + SLACK)

    @property
    def _shown_before(self) -> int:
        """How many of the stored tokens stand before the next ones in what attention sees."""
        return min(self.buffers.filled, self.window)

    def _drop_before(self, n: int) -> int:
        """Drop what neither the next `n` tokens nor a checkpoint behind them need, if there would be too many.

        Returns how many were dropped.
        """
        stored = self.buffers.filled
        if stored + n <= self.window + MOST:
            return 0
        before = min(stored, max(self.window, self.window + SLACK - n))
        if before < stored:
            self.buffers = self.buffers.last(before)
        return stored - before

    def _append(self, keys: mx.array, values: mx.array) -> tuple[tuple[Quantized, Quantized], int]:
        """Write K and V [rows, kv_heads, n, …].

        Returns what attention sees, and how many tokens were dropped from the front of the buffers.
        """
        new, shown = self.quantized(keys, values), self._shown_before + keys.shape[2]
        dropped = self._drop_before(keys.shape[2])
        self.buffers.append(*new)
        seen = self.buffers.view(self.buffers.filled - shown)
        if self.buffers.filled > self.window + MOST:
            dropped += self.buffers.filled - self.kept
            self.buffers = self.buffers.last(self.kept)
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
        """Bool [n, total] for the next `n` tokens; none for one token that sees all that it is shown."""
        refuse_window(window_size, self.window)
        total = self._shown_before + n
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
        refuse_window(window_size, self.window)
        before = self._shown_before
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
