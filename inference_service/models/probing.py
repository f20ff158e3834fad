"""Caches that show shapes of KV, and whether layers attend through us. Computes nothing. Engine thread."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache, RotatingKVCache

from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import SAFETENSORS_DTYPE, LayerGroup, StateArray, StateGroup
from inference_service.engine.paged import passes
from inference_service.engine.paged.passes import Pass, StatesCache


class ProbeKV(passes.KVCache):
    """A layer with K and V, shown only to our attention; or as arrays."""

    def __init__(self, window: int, *, shows_arrays: bool) -> None:
        super().__init__(Pass([]), 0, KVCodec(), window)
        self._shows_arrays = shows_arrays
        self._written: list[tuple[mx.array, mx.array]] = []

    @property
    def offset(self) -> int:
        return sum(int(keys.shape[2]) for keys, _ in self._written)

    @property
    def state(self) -> list[mx.array]:
        return []

    def empty(self) -> bool:
        return not self._written

    @property
    def dtype(self) -> mx.Dtype:
        return self._written[0][0].dtype

    @property
    def kv_heads(self) -> int:
        return int(self._written[0][0].shape[1])

    def widths(self, group_size: int) -> tuple[int, int]:
        k, v = (int(side.shape[3]) for side in self._written[0])
        return k + -k % group_size, v + -v % group_size

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        self._written.append((keys, values))
        if not self._shows_arrays:
            return self, self
        k, v = (mx.concatenate(list(side), axis=2) for side in zip(*self._written, strict=True))
        shown = min(self.offset, self.window + int(keys.shape[2]) - 1) if self.window else self.offset
        return k[:, :, -shown:], v[:, :, -shown:]

    def fetch_arrays(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self.update_and_fetch(keys, values)

    def arrays_mask(self, n: int, window_size: int | None, *, return_array: bool) -> mx.array | None:
        mask = self.make_mask(n, window_size, return_array=True)
        return mask if n > 1 or return_array else None  # type: ignore[return-value]

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:  # noqa: ARG002
        return mx.zeros((*queries.shape[:3], self._written[0][1].shape[3]), queries.dtype)

    def attend_latents(self, queries: mx.array, rotary_queries: mx.array, scale: float) -> mx.array:  # noqa: ARG002
        return queries


Probes = list[ProbeKV | StatesCache]


def probe_of(cache: Any, *, shows_arrays: bool = False) -> ProbeKV | StatesCache | None:
    """Return the probe in place of one of mlx-lm's caches; None for a kind that is not known."""
    kind = type(cache)
    if kind is ArraysCache:
        return StatesCache([None] * len(cache.cache), 0)
    if kind is KVCache:
        return ProbeKV(0, shows_arrays=shows_arrays)
    if kind is RotatingKVCache and not cache.keep:
        return ProbeKV(cache.max_size, shows_arrays=shows_arrays)
    if kind is ChunkedKVCache:  # a query sees its chunk, which is within so many tokens
        return ProbeKV(cache.chunk_size, shows_arrays=shows_arrays)
    return None


def group_layers(probes: Sequence[Any], group_size: int) -> tuple[tuple[LayerGroup, ...], LayerGroup | None]:
    """Group full and sliding layers. Raises ValueError for sliding ones of different shapes."""
    layers: dict[tuple[int, int, int, int | None], list[int]] = {}
    for i, probe in enumerate(probes):
        if isinstance(probe, ProbeKV) and not probe.empty():
            shape = (probe.kv_heads, *probe.widths(group_size), probe.window or None)
            layers.setdefault(shape, []).append(i)
    groups = [LayerGroup(tuple(found), *shape) for shape, found in layers.items()]
    full, sliding = ([each for each in groups if bool(each.window) is windowed] for windowed in (False, True))
    if len(sliding) > 1:
        raise ValueError(f"layers with sliding windows have different KV shapes: {sorted(map(str, sliding))}")
    return tuple(full), sliding[0] if sliding else None


def state_group(probes: Sequence[Any]) -> StateGroup | None:
    """Return recurrent layers. Raises ValueError for unwritten arrays and dtypes that are not stored."""
    states = {i: probe for i, probe in enumerate(probes) if isinstance(probe, StatesCache)}
    if any(array is None for probe in states.values() for array in probe.cache):
        raise ValueError("recurrent layers leave some of their arrays empty")
    if others := {array.dtype for probe in states.values() for array in probe.state} - SAFETENSORS_DTYPE.keys():
        raise ValueError(f"recurrent layers keep {', '.join(sorted(map(str, others)))}, which is not stored")
    arrays = tuple(
        tuple(StateArray(tuple(array.shape[1:]), SAFETENSORS_DTYPE[array.dtype]) for array in probe.state)
        for probe in states.values()
    )
    return StateGroup(tuple(states), arrays) if states else None
