"""Attention of rows over K and V in blocks of host memory that the GPU shares. Apple GPUs.

For passes of one token per sequence, of sequences without arrays: all earlier tokens are in blocks by then.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from inference_service.engine.codec import KVCodec
from inference_service.engine.paged.arena import HostArena
from inference_service.engine.paged.kernels import PagedGroup
from inference_service.engine.paged.metal_attention import MOST_SEGMENTS, Places, flash_decoding
from inference_service.engine.paged.passes import ArrayKVCache, Pass
from inference_service.engine.paged.sequence import BlockTable, Sequence, WorkingKV


def attends_in_segments(of: Pass) -> bool:
    """Return whether all that the pass's tokens see, except themselves, is in blocks."""
    return all(n == 1 and not sequence.arrays for sequence, n in of.pieces)


def places(of: Pass, arena: HostArena, table_of: Callable[[Sequence], BlockTable], window: int) -> Places | None:
    """Return where the tokens that rows see lie; None if in more segments than a kernel takes. `window` 0 is full
    attention.
    """
    tables, spans = [], []
    for (sequence, _), end in zip(of.pieces, of.starts, strict=True):
        table = table_of(sequence)
        low = max(table.first, end + 1 - window) if window else table.first
        first = low - (low - table.first) % table.tokens
        tables.append(table.of(first, end))
        spans.append((first, low, end))
    segments, blocks = arena.placed(tables)
    if len(segments) > MOST_SEGMENTS:
        return None
    return Places(segments, mx.array(blocks), mx.array(np.array(spans, np.int32)))


class SegmentKVCache(ArrayKVCache):
    """One layer's K and V in blocks of host memory. `update_and_fetch` returns this cache itself."""

    def __init__(
        self, of: Pass, layer: int, codec: KVCodec, group: PagedGroup, index: mx.array, places: Places,
        load: Callable[[Sequence, int], WorkingKV],
    ) -> None:  # fmt: skip
        """`index` int32 [1] is the layer's index in its group."""
        super().__init__(of, layer, codec, group.window, load)
        self._group, self._index, self._places = group, index, places

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        self._value_width = int(values.shape[-1])
        self.packed = self.codec.encode(keys, values)
        return self, self

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        assert self.packed is not None
        out = flash_decoding(
            self._group, self._index, queries, self.packed, self._places, self.codec, scale, sinks
        )  # fmt: skip
        return out[..., : self._value_width]
