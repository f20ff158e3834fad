"""The proof that attention over Q4 caches is right on this backend, at load, for the model's own geometry."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.paths import Path
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import KVFormat, Quantized, dequantize

_TOLERANCE = {mx.float32: 1e-4, mx.bfloat16: 3e-2, mx.float16: 5e-3}
_TF32_TOLERANCE = 5e-3
"""NVIDIA's GPUs multiply float32 matrices with as many bits as float16 has."""
_PREFILL = ((5, (700,)), (40, (130,)))
_DECODE = ((1, (700,)), (1, (300, 170)), (1, (90, 1300, 600)))
"""Queries of each row, and the rows' tokens: longer than a step of the buffers, so that views are strided; and than a
chunk of what splits the tokens, or than a block of what splits the queries."""


def tolerance(dtype: mx.Dtype) -> float:
    """The error that rounding explains on this backend."""
    if dtype == mx.float32 and mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu:
        return _TF32_TOLERANCE
    return _TOLERANCE[dtype]


Attend = Callable[[mx.array, Quantized, Quantized, Any, float, Any, mx.array | None], mx.array]
"""As a `Path`, but it gets the cache, as `AttentionBackend.attend` does."""


def over_caches(path: Path) -> Attend:
    """A path that gets the cache, and uses its format."""
    return lambda queries, keys, values, cache, *rest: path(queries, keys, values, cache.format, *rest)


def prefill_error(attend: Attend, geometry: Geometry) -> float:
    """The largest error of a few queries of one sequence, and of more. Raises FailedPrecondition if it is too large."""
    return _error(attend, "prefill", _PREFILL, geometry)


def decode_error(attend: Attend, geometry: Geometry) -> float:
    """The largest error of one query per row, of one row and of unequal ones. Raises as `prefill_error` does."""
    return _error(attend, "decode", _DECODE, geometry)


def _error(attend: Attend, phase: str, shapes: Sequence[tuple[int, tuple[int, ...]]], geometry: Geometry) -> float:
    """The largest error over all layer groups, with and without sinks, relative to the largest output."""
    error = max(
        _group_error(attend, queries, lengths, geometry, group, sinks)
        for queries, lengths in shapes
        for group in geometry.groups
        for sinks in (False, True)
    )
    if not error <= tolerance(geometry.dtype):
        raise FailedPrecondition(f"Q4 attention is wrong on this backend: {phase} differs by {error:.2g}")
    return error


def _group_error(
    attend: Attend, queries: int, lengths: tuple[int, ...], geometry: Geometry, group: LayerGroup, with_sinks: bool
) -> float:
    """The largest error, of one sequence as it is or of several merged into a batch."""
    keys = iter(mx.random.split(mx.random.key(7), 16))

    def random(*shape: int) -> mx.array:
        return mx.random.normal(shape, key=next(keys)).astype(geometry.dtype)

    caches: list[Any] = []
    for tokens in lengths:
        caches.append(geometry.new_cache(group))
        before = tokens - queries
        caches[-1].update_and_fetch(
            random(1, group.kv_heads, before, group.k_dim), random(1, group.kv_heads, before, group.v_dim)
        )
    rows = len(lengths)
    cache = type(caches[0]).merge(caches) if rows > 1 else caches[0]
    q = random(rows, geometry.heads, queries, group.k_dim)
    k = random(rows, group.kv_heads, queries, group.k_dim)
    v = random(rows, group.kv_heads, queries, group.v_dim)
    sinks = random(geometry.heads) if with_sinks else None
    scale = group.k_dim**-0.5
    wanted = []
    if rows > 1:
        for row, alone in enumerate(caches):
            k_seen, v_seen = alone.update_and_fetch(k[row : row + 1], v[row : row + 1])
            wanted.append(
                plain_attention(q[row : row + 1], k_seen, v_seen, geometry.format, scale, group.window, sinks)
            )
    mask = cache.make_mask(queries)
    k_seen, v_seen = cache.update_and_fetch(k, v)
    if rows == 1:
        wanted.append(plain_attention(q, k_seen, v_seen, geometry.format, scale, group.window, sinks))
    found = attend(q, k_seen, v_seen, cache, scale, mask, sinks).astype(mx.float32)
    truth = mx.concatenate(wanted, axis=0)
    error: float = (mx.abs(found - truth).max() / mx.abs(truth).max()).item()  # type: ignore[assignment]
    return error


def plain_attention(
    queries: mx.array,
    keys: Quantized,
    values: Quantized,
    by: KVFormat,
    scale: float,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """The reference: softmax(q k^T) v in float32 over dequantized values, causal, with the scores spelled out.

    Takes queries [rows, heads, n, k_dim] that are the last `n` of the tokens; returns float32 [rows, heads, n, v_dim].

    Products are summed elementwise, because GPUs multiply float32 matrices in fewer bits.
    """
    k, v = (dequantize(part, how).astype(mx.float32) for part, how in ((keys, by.k), (values, by.v)))
    group = queries.shape[1] // k.shape[1]
    k, v = mx.repeat(k, group, axis=1), mx.repeat(v, group, axis=1)
    scores = ((queries.astype(mx.float32) * scale)[:, :, :, None] * k[:, :, None]).sum(axis=-1)
    n, total = scores.shape[-2:]
    at, seen = mx.arange(total - n, total)[:, None], mx.arange(total)[None]
    visible = (at >= seen) & (at < seen + (window or total))
    scores = mx.where(visible, scores, -mx.inf)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.astype(mx.float32).reshape(1, -1, 1, 1), (*scores.shape[:3], 1))
        scores = mx.concatenate([scores, sink], axis=-1)
    weights = mx.softmax(scores, axis=-1)[..., :total]
    return (weights[..., None] * v[:, :, None]).sum(axis=-2)
