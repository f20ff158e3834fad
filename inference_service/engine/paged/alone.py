"""Caches of one sequence without a pool, for measuring a model: packed and unpacked, but arrays."""

from collections.abc import Sequence as Items
from typing import Any

import mlx.core as mx

from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.passes import ArrayKVCache, Pass, StatesCache
from inference_service.engine.paged.sequence import Sequence, WorkingKV


class SequenceKVCache(ArrayKVCache):
    def __init__(self, layer: int, codec: KVCodec, window: int) -> None:
        super().__init__(Pass([]), layer, codec, window, _nothing)
        self.working = WorkingKV(window)
        self.tokens = 0

    @property
    def offset(self) -> int:
        return self.tokens

    @property
    def state(self) -> list[mx.array]:
        return self.working.state

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.working.state)

    def empty(self) -> bool:
        return not self.tokens

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        self.tokens += int(keys.shape[2])
        _, (k, v) = self.codec.stored(keys, values)
        return self.working.append(k[..., : keys.shape[-1]], v[..., : values.shape[-1]])


SequenceCaches = list[SequenceKVCache | StatesCache]


def new_caches(geometry: Geometry, codecs: Items[KVCodec] = ()) -> SequenceCaches:
    """Without `codecs`, none centres."""
    each = dict(zip(geometry.kv_layers, codecs or geometry.codecs(), strict=True))
    caches: dict[int, SequenceKVCache | StatesCache] = {
        layer: SequenceKVCache(layer, each[layer], group.window or 0)
        for group in geometry.groups
        for layer in group.layers
    }
    if geometry.states is not None:
        caches |= {layer: StatesCache([None] * count, 0) for layer, count in geometry.states.counts}
    return [caches[layer] for layer in sorted(caches)]


def _nothing(sequence: Sequence, layer: int) -> WorkingKV:
    raise ValueError(f"layer {layer} of a sequence of {sequence.length} tokens is in no block")
