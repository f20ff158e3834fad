"""Batch caches within a compiled decode step: buffers of constant shapes, and positions that are arrays themselves.

A step that is compiled is traced once for many tokens, so nothing that changes from token to token may be a number in
it: the token is written at a position that is an input. By MLX's operations that makes new arrays, in the memory of the
old ones: twelve nodes of the graph a layer; attention sees whole buffers behind a mask, in which all is finite, as
masked values must be: zeros, or tokens that were trimmed. On CUDA one kernel writes where the buffers are, and gives
the next one its position; attention is by a kernel that is given the range of tokens that each row sees.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from inference_service.engine.caches.buffers import BufferedCache, KVBuffers
from inference_service.engine.caches.full import BatchQuantizedKVCache
from inference_service.engine.caches.sliding import BatchSlidingQuantizedKVCache
from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import Quantized

BatchKVCache = BatchQuantizedKVCache | BatchSlidingQuantizedKVCache


class TokenRange(NamedTuple):
    """What one query of each row sees of a buffer: tokens `first`, int32 [rows], up to `end`, int32 [1]; with a window
    that is not 0 only the last so many.
    """

    first: mx.array
    end: mx.array
    window: int


class Positions:
    """Where the rows of some caches stand, as inputs of a step. Engine thread only.

    `slot` int32 [1] is where the next token is written, `first` int32 [rows] each row's first token in the buffers, and
    `offset` int32 [rows] each row's tokens.
    """

    def __init__(self, numbers: mx.array) -> None:
        """Of `numbers`, as `of` gives them."""
        rows = (numbers.shape[0] - 1) // 2
        self.slot, self.first, self.offset = numbers[:1], numbers[1 : 1 + rows], numbers[1 + rows :]
        self._masks: dict[tuple[int, int], mx.array] = {}

    @staticmethod
    def of(cache: BatchKVCache) -> list[int]:
        """The numbers of a batch cache that has room for a token: slot, first tokens, offsets."""
        return [cache.buffers.filled, *cache.padding, *cache.offsets]

    def mask(self, capacity: int, window: int) -> mx.array:
        """Bool [rows, 1, 1, capacity]: what the next token of each row sees of a buffer, itself included.

        `window` 0 is full attention. Layers of one kind share a mask.
        """
        found = self._masks.get((capacity, window))
        if found is None:
            at = mx.arange(capacity)
            found = (at >= self.first[:, None, None, None]) & (at <= self.slot)
            if window:
                found = found & (at > self.slot - window)
            self._masks[capacity, window] = found
        return found


class TracedKVCache(BufferedCache):
    """One layer's cache for one call of the model, which writes one token of each row. Engine thread only."""

    def __init__(
        self, codec: KVCodec, window: int, positions: Positions, arrays: Sequence[mx.array], *, in_place: bool
    ) -> None:
        """`window` 0 is full attention; `arrays` are those of the buffers [rows, kv_heads, capacity, …], or what
        `KVBuffers.in_place` gives.
        """
        super().__init__(codec)
        self.window = window
        self.positions = positions
        self.in_place = in_place
        self.slot = arrays[6] if in_place else positions.slot
        self.buffers = KVBuffers.of(arrays[:6], arrays[0].shape[2])
        self.seen: TokenRange | None = None
        """What attention sees of buffers that were written in place, of which no mask is given."""

    @property
    def offset(self) -> mx.array:
        """Each row's tokens, int32 [rows]."""
        return self.positions.offset

    @property
    def state(self) -> list[mx.array]:
        """The arrays that hold the token; where they are written in place, what computes that they do."""
        return [self.seen.end] if self.seen else self.buffers.arrays

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Write K [rows, kv_heads, 1, k_dim] and V [rows, kv_heads, 1, v_dim]; the whole buffers, quantized.

        Raises ValueError where they are to be written in place, and no kernel does it.
        """
        if self.in_place:
            self.value_width = int(values.shape[-1])
            end = self.codec.write(keys, values, self.buffers.both(), self.slot)
            if end is None:
                raise ValueError("no kernel writes such K and V in place")
            self.seen = TokenRange(self.positions.first, end, self.window)
            return self.buffers.both()
        sides = zip(self.buffers.both(), self.quantized(keys, values), strict=True)
        written = [
            mx.slice_update(old, part, self.slot, axes=(2,))
            for side, new in sides
            for old, part in zip(side, new, strict=True)
        ]
        self.buffers = KVBuffers.of(written, self.buffers.filled)
        return self.buffers.both()

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Bool [rows, 1, 1, capacity]; none where the token is written in place, and an array is not asked for.

        Raises ValueError for more than one token, and for another window.
        """
        if n != 1 or window_size not in (None, self.window):
            raise ValueError(f"a compiled step has one token of each row and window {self.window}: {n}, {window_size}")
        if self.in_place and not return_array:
            return None
        return self.positions.mask(self.buffers.filled, self.window)
