"""The attention seam: the one place where models meet Q4 caches.

mlx-lm's models call `scaled_dot_product_attention`, a name in their own module; `AttentionSeam.install` puts the seam
there. A load-time self-test proves that the Q4 path runs and agrees with plain attention over dequantized values, and
takes the dequantized path where the backend has no kernel for the other.
"""

import sys
from dataclasses import dataclass
from typing import Any, get_args

import mlx.core as mx
import mlx.nn as nn

from agentmem.errors import FailedPrecondition
from inference_service.engine.caches import (
    BatchQuantizedKVCache,
    BatchSlidingQuantizedKVCache,
    Quantized,
    QuantizedKVCache,
    SlidingQuantizedKVCache,
)
from inference_service.engine.geometry import Geometry, LayerGroup

QUANTIZED_MATMUL = "quantized_matmul"
DEQUANTIZE_FUSED = "dequantize+fused"

Q4Cache = QuantizedKVCache | SlidingQuantizedKVCache | BatchQuantizedKVCache | BatchSlidingQuantizedKVCache

_SEAM_NAME = "scaled_dot_product_attention"
_TOLERANCE = {mx.float32: 1e-4, mx.bfloat16: 3e-2, mx.float16: 5e-3}


@dataclass(frozen=True)
class PathReport:
    """What the self-test found for one phase. `relative_error` is the largest difference over the largest output."""

    phase: str
    path: str
    relative_error: float
    note: str = ""


class AttentionSeam:
    """Attention over Q4 caches. `calls` counts how often models came through it. Engine thread only."""

    def __init__(self) -> None:
        self.calls = 0
        self.heads = 0
        self.decode_path = QUANTIZED_MATMUL

    def install(self, model: nn.Module) -> None:
        """Put the seam into every module that defines a part of `model`. Raises FailedPrecondition if none takes it."""
        modules = {sys.modules[type(module).__module__] for _, module in model.named_modules()}
        users = [module for module in modules if hasattr(module, _SEAM_NAME)]
        if not users:
            raise FailedPrecondition(
                f"{type(model).__module__} has attention of its own that cannot run over a Q4 cache"
            )
        for module in users:
            original = getattr(module, _SEAM_NAME)
            fallback = original.fallback if isinstance(original, _Dispatch) else original
            setattr(module, _SEAM_NAME, _Dispatch(self, fallback))

    def attend(
        self,
        queries: mx.array,
        keys: Quantized,
        values: Quantized,
        cache: Q4Cache,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Attention of queries [rows, heads, n, k_dim] over what a cache shows; [rows, heads, n, v_dim].

        `mask` is what the cache's `make_mask` gave. `sinks` [heads] are logits that take part in the softmax and in
        nothing else (GPT-OSS). Many queries: dequantize this layer, then the fused kernel, so that the score matrix
        never exists. One query: quantized matmul with the GQA group folded into the query rows, or the same as for
        many.
        """
        if queries.shape[2] == 1 and self.decode_path == QUANTIZED_MATMUL:
            return _one_query(queries, keys, values, cache, scale, mask, sinks)
        k = mx.dequantize(*keys, group_size=cache.group_size, bits=cache.bits)
        v = mx.dequantize(*values, group_size=cache.group_size, bits=cache.bits)
        if isinstance(cache, SlidingQuantizedKVCache) and queries.shape[2] > cache.window:
            return _in_pieces(queries, k, v, cache.window, scale, mask, sinks)
        return _fused(queries, k, v, scale, mask, sinks)

    def self_test(self, geometry: Geometry) -> list[PathReport]:
        """Compare both phases with plain attention on this backend, for this geometry.

        Raises FailedPrecondition where a phase is wrong: a wrong answer is never served. A decode kernel that does not
        exist, or is wrong, is replaced by the dequantized path, and the report says so.
        """
        prefill = PathReport("prefill", DEQUANTIZE_FUSED, self._error("prefill", 5, geometry))
        self.decode_path, note = QUANTIZED_MATMUL, ""
        try:
            error = self._error("decode", 1, geometry)
        except (RuntimeError, ValueError, FailedPrecondition) as failure:
            self.decode_path, note = DEQUANTIZE_FUSED, f"{QUANTIZED_MATMUL}: {failure}"
            error = self._error("decode", 1, geometry)
        return [prefill, PathReport("decode", self.decode_path, error, note)]

    def _error(self, phase: str, queries: int, geometry: Geometry) -> float:
        """The largest error over all layer groups, with and without sinks."""
        groups = [group for group in (geometry.full, geometry.sliding) if group is not None]
        error = max(self._group_error(queries, geometry, group, sinks) for group in groups for sinks in (False, True))
        if not error <= _TOLERANCE[geometry.dtype]:
            raise FailedPrecondition(f"Q4 attention is wrong on this backend: {phase} differs by {error:.2g}")
        return error

    def _group_error(self, queries: int, geometry: Geometry, group: LayerGroup, with_sinks: bool) -> float:
        """The largest error: of one sequence for prefill, of a batch of two unequal ones for decode."""
        lengths = (300, 170) if queries == 1 else (300,)  # longer than a step of the buffers, so that views are strided
        keys = iter(mx.random.split(mx.random.key(7), 16))

        def random(*shape: int) -> mx.array:
            return mx.random.normal(shape, key=next(keys)).astype(geometry.dtype)

        caches: list[Any] = []
        for tokens in lengths:
            caches.append(_cache(geometry, group))
            before = tokens - queries
            caches[-1].update_and_fetch(
                random(1, group.kv_heads, before, group.k_dim), random(1, group.kv_heads, before, group.v_dim)
            )
        cache = type(caches[0]).merge(caches) if queries == 1 else caches[0]
        rows = len(lengths)
        q = random(rows, geometry.heads, queries, group.k_dim)
        k = random(rows, group.kv_heads, queries, group.k_dim)
        v = random(rows, group.kv_heads, queries, group.v_dim)
        sinks = random(geometry.heads) if with_sinks else None
        scale = group.k_dim**-0.5
        wanted = []
        if cache is not caches[0]:
            for row, alone in enumerate(caches):
                k_seen, v_seen = alone.update_and_fetch(k[row : row + 1], v[row : row + 1])
                wanted.append(plain_attention(q[row : row + 1], k_seen, v_seen, alone, scale, group.window, sinks))
        mask = cache.make_mask(queries)
        k_seen, v_seen = cache.update_and_fetch(k, v)
        if not wanted:
            wanted.append(plain_attention(q, k_seen, v_seen, cache, scale, group.window, sinks))
        found = self.attend(q, k_seen, v_seen, cache, scale, mask, sinks).astype(mx.float32)
        truth = mx.concatenate(wanted, axis=0)
        error: float = (mx.abs(found - truth).max() / mx.abs(truth).max()).item()  # type: ignore[assignment]
        return error


def _cache(geometry: Geometry, group: LayerGroup) -> QuantizedKVCache | SlidingQuantizedKVCache:
    if group.window is not None:
        return SlidingQuantizedKVCache(group.window, geometry.bits, geometry.group_size)
    return QuantizedKVCache(geometry.bits, geometry.group_size)


class _Dispatch:
    """Stands in for a model module's `scaled_dot_product_attention`; other caches than ours go the old way."""

    def __init__(self, seam: AttentionSeam, fallback: Any) -> None:
        self.seam = seam
        self.fallback = fallback

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        if not isinstance(cache, get_args(Q4Cache)):
            return self.fallback(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        self.seam.calls += 1
        self.seam.heads = queries.shape[1]
        return self.seam.attend(queries, keys, values, cache, scale, mask, sinks)


def _one_query(
    queries: mx.array, keys: Quantized, values: Quantized, cache: Q4Cache, scale: float, mask: Any, sinks: Any
) -> mx.array:
    rows, heads, _, width = queries.shape
    kv_heads = keys.weights.shape[1]
    folded = (queries * scale).reshape(rows, kv_heads, heads // kv_heads, width)
    scores = mx.quantized_matmul(folded, *keys, transpose=True, group_size=cache.group_size, bits=cache.bits)
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.reshape(1, kv_heads, -1, 1), (*scores.shape[:3], 1))
        scores = mx.concatenate([scores, sink.astype(scores.dtype)], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    if sinks is not None:
        weights = weights[..., :-1]
    out = mx.quantized_matmul(weights, *values, transpose=False, group_size=cache.group_size, bits=cache.bits)
    return out.reshape(rows, heads, 1, -1)


def _fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
    """The fused kernel; V is padded to K's width where it is narrower (MLA), because no kernel takes both."""
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
    return out[..., :width]


def _in_pieces(
    q: mx.array, k: mx.array, v: mx.array, window: int, scale: float, mask: mx.array, sinks: mx.array | None
) -> mx.array:
    """Queries of a sliding layer, at most a window of them at once, each piece over the keys that it can see."""
    n, total = q.shape[2], k.shape[2]
    pieces = []
    for start in range(0, n, window):
        end = min(n, start + window)
        first, last = max(0, total - n + start - window + 1), total - n + end
        piece = mask[start:end, first:last]
        pieces.append(_fused(q[:, :, start:end], k[:, :, first:last], v[:, :, first:last], scale, piece, sinks))
    return mx.concatenate(pieces, axis=2)


def plain_attention(
    queries: mx.array,
    keys: Quantized,
    values: Quantized,
    cache: Q4Cache,
    scale: float,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """The reference: softmax(q k^T) v in float32 over dequantized values, causal, with the scores spelled out."""
    k, v = (
        mx.dequantize(*part, group_size=cache.group_size, bits=cache.bits).astype(mx.float32) for part in (keys, values)
    )
    group = queries.shape[1] // k.shape[1]
    k, v = mx.repeat(k, group, axis=1), mx.repeat(v, group, axis=1)
    scores = (queries.astype(mx.float32) * scale) @ k.swapaxes(-1, -2)
    n, total = scores.shape[-2:]
    at, seen = mx.arange(total - n, total)[:, None], mx.arange(total)[None]
    visible = (at >= seen) & (at < seen + (window or total))
    scores = mx.where(visible, scores, -mx.inf)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.astype(mx.float32).reshape(1, -1, 1, 1), (*scores.shape[:3], 1))
        return mx.softmax(mx.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1] @ v
    return mx.softmax(scores, axis=-1) @ v
