"""Measures means of K and V, and their bases. Engine thread only."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.balancing import Bases, bases
from inference_service.engine.calibration import Calibration, LayerCalibration
from inference_service.engine.codec import KVCodec
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Geometry
from inference_service.engine.network import Network
from inference_service.engine.paged.alone import new_caches
from inference_service.engine.paged.passes import KVCache, Pass, banded
from inference_service.engine.pausing import compute, let_others_run, work_clock
from inference_service.engine.quantization import BALANCED

TOKENS: Final = 1024
"""Means over 128 tokens leave a quarter more divergence, bases over 256 a third (SmolLM2)."""

_FEWEST: Final = 128
_SECONDS: Final = 240.0
_LARGEST: Final = float(np.finfo(np.float16).max)


def calibrate(network: Network, token_ids: Sequence[int], geometry: Geometry) -> Calibration:
    """Measure over one prefill with unquantized KV. Means that are not finite in float16 count as 0."""
    caches: list[Any] = list(new_caches(geometry))
    kind = _MeasuringArrays if geometry.format.scheme != BALANCED else _Measuring
    windows = {layer: group.window or 0 for group in geometry.groups for layer in group.layers}
    with_kv = [kind(windows[layer]) for layer in geometry.kv_layers]
    for layer, cache in zip(geometry.kv_layers, with_kv, strict=True):
        caches[layer] = cache
    network(mx.array([list(token_ids)]), cache=caches)
    compute(cache.means for cache in with_kv)
    return Calibration([cache.found for cache in with_kv])


def calibrate_in_time(
    network: Network, token_ids: Sequence[int], geometry: Geometry, seconds: float = _SECONDS
) -> Calibration:
    if not on_cpu() or len(token_ids) <= _FEWEST:
        return calibrate(network, token_ids, geometry)
    began = work_clock()
    few = calibrate(network, token_ids[:_FEWEST], geometry)
    affordable = int(_FEWEST * seconds / max(work_clock() - began, 1e-6))
    return few if affordable < 2 * _FEWEST else calibrate(network, token_ids[:affordable], geometry)


def _half(means: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    return np.where(np.abs(means) <= _LARGEST, means, 0.0).astype(np.float16)


class _Measuring(KVCache):
    def __init__(self, window: int) -> None:
        super().__init__(Pass([]), 0, KVCodec(), window)
        self.means: list[mx.array] = []
        self._sides: tuple[mx.array, mx.array] | None = None
        self._bases: Bases | None = None

    @property
    def offset(self) -> int:
        return 0 if self._sides is None else int(self._sides[0].shape[2])

    @property
    def dtype(self) -> mx.Dtype:
        assert self._sides is not None
        return self._sides[1].dtype

    @property
    def state(self) -> list[mx.array]:
        return self.means

    @property
    def found(self) -> LayerCalibration:
        k, v = (_half(np.array(side)) for side in self.means)
        found = LayerCalibration(k, v)
        return found.with_bases(*self._bases) if self._bases else found

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        self.fetch_arrays(keys, values)
        return self, self

    def fetch_arrays(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self._sides = keys, values
        self.means = [side[0].astype(mx.float32).mean(axis=1) for side in (keys, values)]
        return keys, values

    def arrays_mask(self, n: int, window_size: int | None, **_: Any) -> mx.array:
        return banded(n, n, window_size or n)

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        assert self._sides is not None
        keys, values = self._sides
        k, v = (side[0].astype(mx.float32) for side in self._sides)
        k_mean, v_mean = (mean[:, None] for mean in self.means)
        n = int(k.shape[1])
        visible = banded(n, n, self.window or n)
        q = queries[0].astype(mx.float32)
        by_head = q.reshape(k.shape[0], -1, *q.shape[1:])
        each_sink = [None] * len(k) if sinks is None else sinks.astype(mx.float32).reshape(len(k), -1)
        weights = (_weights(*of, scale, visible) for of in zip(by_head, k, each_sink, strict=True))
        try:
            rows = by_head.reshape(k.shape[0], -1, q.shape[2])
            self._bases = bases(k - k_mean, v - v_mean, rows, _with_pauses(weights))
        except np.linalg.LinAlgError:  # NaN, or infinite
            self._bases = Bases(*(np.tile(np.eye(x.shape[2]), (len(k), 1, 1)) for x in (k, v)))
        missing = keys.shape[3] - values.shape[3]
        wide = mx.pad(values, [(0, 0), (0, 0), (0, 0), (0, missing)]) if missing > 0 else values
        out = mx.fast.scaled_dot_product_attention(queries, keys, wide, scale=scale, mask=visible, sinks=sinks)
        return out[..., : values.shape[3]]


class _MeasuringArrays(_Measuring):
    update_and_fetch = _Measuring.fetch_arrays


def _with_pauses(weights: Iterable[mx.array]) -> Iterator[mx.array]:
    for each in weights:
        let_others_run()
        yield each


def _weights(queries: mx.array, keys: mx.array, sinks: mx.array | None, scale: float, visible: mx.array) -> mx.array:
    """Return a KV head's attention [heads * n, tokens] of queries [heads, n, width] over keys [tokens, width]."""
    scores = mx.where(visible, (queries * scale) @ keys.T, -mx.inf)
    if sinks is not None:
        sink = mx.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = mx.concatenate([scores, sink], axis=-1)
    return mx.softmax(scores, axis=-1)[..., : keys.shape[0]].reshape(-1, keys.shape[0])
