"""The proof that attention over quantized caches is right on this backend, at load, for the model's own geometry."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.latents import LatentPath
from inference_service.engine.attention.paths import Path
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup, new_cache
from inference_service.engine.quantization import PLAIN, Quantization, Quantized, dequantize, width_of
from inference_service.engine.rotation import block_width, signs

_TOLERANCE = {mx.float32: 1e-4, mx.bfloat16: 3e-2, mx.float16: 5e-3}
_ENCODING_TOLERANCE = 3.0
"""Of 8 bits bfloat16 adds as much again; a mean that is left out of 3 is five."""
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
"""As a `Path`, but with the cache for its codec."""


def over_caches(path: Path) -> Attend:
    """Attention by a path over what a cache shows."""

    def attend(queries: mx.array, keys: Quantized, values: Quantized, cache: Any, *rest: Any) -> mx.array:
        return path(queries, keys, values, cache.codec, *rest)

    return attend


def over_latents(path: LatentPath) -> Attend:
    """The same of latents, for queries of which those with positions come last."""

    def attend(
        queries: mx.array, latents: Quantized, rotary: Quantized, cache: Any, scale: float, mask: Any, _: Any
    ) -> mx.array:
        absorbed, with_positions = mx.split(queries, [width_of(latents, cache.codec.format.k)], axis=-1)
        return path(absorbed, with_positions, latents, rotary, cache.codec, scale, mask)

    return attend


def prefill_error(attend: Attend, geometry: Geometry) -> float:
    """The largest error of a few queries of one sequence, and of more. Raises FailedPrecondition if it is too large."""
    return _error(attend, "prefill", _PREFILL, geometry)


def decode_error(attend: Attend, geometry: Geometry) -> float:
    """The largest error of one query per row, of one row and of unequal ones. Raises as `prefill_error` does."""
    return _error(attend, "decode", _DECODE, geometry)


def encoding_error(geometry: Geometry) -> float:
    """How far what is written stands from K and V, rms, over the rounding error of such steps; about 1.

    Attention's own tests start from what was written, so they cannot see a mean that was left out there. Raises
    FailedPrecondition where the error is more than rounding explains.
    """
    error = max(_group_encoding_error(geometry, group) for group in geometry.groups)
    if not error <= _ENCODING_TOLERANCE:
        raise FailedPrecondition(f"quantizing is wrong on this backend: K or V is {error:.2g} roundings off")
    return error


def _group_encoding_error(geometry: Geometry, group: LayerGroup) -> float:
    keys = iter(mx.random.split(mx.random.key(5), 4))
    sides, means = [], []
    for width in (group.k_dim, group.v_dim):
        mean = mx.random.normal((group.kv_heads, width), key=next(keys)).astype(geometry.dtype)
        noise = mx.random.normal((1, group.kv_heads, 65, width), key=next(keys))
        sides.append((noise + mean[:, None]).astype(geometry.dtype))
        means.append(mean)
    packed = KVCodec(geometry.format, (means[0], means[1])).encode(sides[0], sides[1])
    errors = []
    for x, mean, written, by in zip(sides, means, packed, (geometry.format.k, geometry.format.v), strict=True):
        left = plain_values(written, by, mean, rotated=geometry.format.scheme != PLAIN)
        rounding = mx.abs(written.scales.astype(mx.float32)).mean() / 12**0.5
        errors.append(mx.square(left - x.astype(mx.float32)).mean().sqrt() / rounding)
    largest: float = mx.stack(errors).max().item()  # type: ignore[assignment]
    return largest


def arrays_error(geometry: Geometry) -> float:
    """The largest error of K and V that layers see as arrays, over the largest element.

    Raises FailedPrecondition where it is more than rounding explains.
    """
    error = max(_group_arrays_error(geometry, group) for group in geometry.groups)
    if not error <= tolerance(geometry.dtype):
        raise FailedPrecondition(f"dequantizing is wrong on this backend: K or V differs by {error:.2g}")
    return error


def _group_arrays_error(geometry: Geometry, group: LayerGroup) -> float:
    keys = iter(mx.random.split(mx.random.key(9), 4))
    widths = (group.k_dim, group.v_dim)
    means = tuple(mx.random.normal((group.kv_heads, width), key=next(keys)).astype(geometry.dtype) for width in widths)
    k, v = (mx.random.normal((1, group.kv_heads, 65, width), key=next(keys)).astype(geometry.dtype) for width in widths)
    codec, rotated = KVCodec(geometry.format, (means[0], means[1])), geometry.format.scheme != PLAIN
    packed = codec.encode(k, v)
    errors = []
    for found, each, mean, by in zip(
        codec.decode(*packed), packed, means, (geometry.format.k, geometry.format.v), strict=True
    ):
        truth = plain_values(each, by, mean, rotated=rotated)
        errors.append(mx.abs(found.astype(mx.float32) - truth).max() / mx.abs(truth).max())
    largest: float = mx.stack(errors).max().item()  # type: ignore[assignment]
    return largest


def _error(attend: Attend, phase: str, shapes: Sequence[tuple[int, tuple[int, ...]]], geometry: Geometry) -> float:
    """The largest error over all layer groups, with and without sinks, relative to the largest output."""
    error = max(
        _group_error(attend, queries, lengths, geometry, group, sinks)
        for queries, lengths in shapes
        for group in geometry.groups
        for sinks in ((False,) if geometry.latents else (False, True))
    )
    if not error <= tolerance(geometry.dtype):
        raise FailedPrecondition(f"quantized attention is wrong on this backend: {phase} differs by {error:.2g}")
    return error


def _group_error(
    attend: Attend, queries: int, lengths: tuple[int, ...], geometry: Geometry, group: LayerGroup, with_sinks: bool
) -> float:
    """The largest error, of one sequence as it is or of several merged into a batch."""
    keys = iter(mx.random.split(mx.random.key(7), 16))

    def random(*shape: int, mean: mx.array | float = 0.0) -> mx.array:
        return (mx.random.normal(shape, key=next(keys)) + mean).astype(geometry.dtype)

    k_mean, v_mean = random(group.kv_heads, group.k_dim), 0.125 * random(group.kv_heads, group.v_dim)
    if geometry.latents:
        k_mean = 0.125 * k_mean  # The output has it, rounded with it.
    codec = KVCodec(geometry.format, (k_mean, v_mean))

    def some(rows: int, tokens: int) -> tuple[mx.array, mx.array]:
        means = (each[:, None] for each in (k_mean, v_mean))
        k, v = (random(rows, mean.shape[0], tokens, mean.shape[2], mean=mean) for mean in means)
        return k, v

    caches: list[Any] = []
    for tokens in lengths:
        caches.append(new_cache(group, codec))
        caches[-1].update_and_fetch(*some(1, tokens - queries))

    def attended(queries: mx.array, k_seen: Quantized, v_seen: Quantized) -> mx.array:
        rotated = geometry.format.scheme != PLAIN
        k = plain_values(k_seen, geometry.format.k, k_mean, rotated=rotated)
        v = plain_values(v_seen, geometry.format.v, v_mean, rotated=rotated)
        if geometry.latents:
            k, v = mx.concatenate([k, v], axis=-1), k
        return plain_attention(queries, k, v, scale, group.window, sinks)

    rows = len(lengths)
    cache = type(caches[0]).merge(caches) if rows > 1 else caches[0]
    q = random(rows, geometry.heads, queries, group.k_dim + geometry.latents * group.v_dim)
    k, v = some(rows, queries)
    sinks = random(geometry.heads, mean=4.0) if with_sinks else None
    scale = group.k_dim**-0.5
    wanted = []
    if rows > 1:
        for row, alone in enumerate(caches):
            k_seen, v_seen = alone.update_and_fetch(k[row : row + 1], v[row : row + 1])
            wanted.append(attended(q[row : row + 1], k_seen, v_seen))
    mask = cache.make_mask(queries)
    k_seen, v_seen = cache.update_and_fetch(k, v)
    if rows == 1:
        wanted.append(attended(q, k_seen, v_seen))
    found = attend(q, k_seen, v_seen, cache, scale, mask, sinks).astype(mx.float32)
    truth = mx.concatenate(wanted, axis=0)
    mean_seen = k_mean if geometry.latents else v_mean
    of_mean = mx.repeat(mean_seen.astype(mx.float32), geometry.heads // group.kv_heads, axis=0)[:, None]
    error: float = (mx.abs(found - truth).max() / mx.abs(truth - of_mean).max()).item()  # type: ignore[assignment]
    return error


def plain_values(x: Quantized, by: Quantization, mean: mx.array, *, rotated: bool) -> mx.array:
    """What packed K or V stand for, float32 [rows, kv_heads, tokens, width]: the reference for codecs.

    `mean` [kv_heads, width] and the rotation count only where `rotated`. The rotation is a matrix here, of Sylvester's
    Hadamard matrices, multiplied on the CPU, because GPUs multiply float32 matrices in fewer bits.
    """
    values = dequantize(x, by).astype(mx.float32)
    if not rotated:
        return values
    width = values.shape[-1]
    at, block = np.arange(width), block_width(width)
    parity = np.array([bin(each).count("1") % 2 for each in range(block)])
    one = (1.0 - 2.0 * parity[at[:block, None] & at[None, :block]]) / np.sqrt(block)
    rotation = np.array(signs(width))[:, None] * np.kron(np.eye(width // block), one)
    back = mx.array(rotation.T.astype(np.float32))
    return mx.matmul(values, back, stream=mx.cpu) + mean.astype(mx.float32)[:, None]


def plain_attention(
    queries: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """The reference: softmax(q k^T) v in float32, causal, with the scores spelled out.

    Takes k and v float32 [rows, kv_heads, tokens, …], and queries [rows, heads, n, k_dim] that are the last `n` of the
    tokens; returns float32 [rows, heads, n, v_dim].

    Products are summed elementwise, because GPUs multiply float32 matrices in fewer bits.
    """
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
