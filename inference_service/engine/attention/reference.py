"""Attention and unpacking, spelled out in float32; and codecs of random means and bases."""

import mlx.core as mx
import numpy as np

from inference_service.engine import rotation
from inference_service.engine.codec import Basis, KVCodec
from inference_service.engine.quantization import BALANCED, PLAIN, KVFormat, Quantization, Quantized, dequantize


def plain_values(x: Quantized, by: Quantization, mean: mx.array, back: mx.array | None) -> mx.array:
    """Return the values of packed K or V, float32 [rows, kv_heads, tokens, width].

    `back` is the matrix out of the packed basis; without one, `mean` [kv_heads, width] is not added. On the CPU: GPUs
    multiply float32 in fewer bits.
    """
    values = dequantize(x, by).astype(mx.float32)
    if back is None:
        return values
    return mx.matmul(values, back, stream=mx.cpu) + mean.astype(mx.float32)[:, None]


def out_of_rotation(width: int) -> mx.array:
    """Return the transpose of R, float32 [width, width]."""
    return mx.array(rotation.matrix(width).T.astype(np.float32))


def random_codec(format: KVFormat, means: tuple[mx.array, mx.array], seed: int) -> KVCodec:
    """Return a codec with these means, and with random bases if the format has any."""
    if format.scheme != BALANCED:
        return KVCodec(format, means)
    random = np.random.default_rng(seed)
    bases = []
    for keys, mean in zip((True, False), means, strict=True):
        heads, width = mean.shape[0], mean.shape[1] + -mean.shape[1] % format.group_size
        tilt = random.normal(size=(heads, width, width)) / (2 * width**0.5)
        bases.append(Basis.of((np.eye(width) + tilt) @ rotation.matrix(width), mean.dtype, keys=keys))
    return KVCodec(format, means, (bases[0], bases[1]))


def out_of_packed(codec: KVCodec, widths: tuple[int, int]) -> tuple[mx.array | None, mx.array | None]:
    """Return the matrices of K and V out of the packed basis, float32."""
    if codec.format.scheme == PLAIN:
        return None, None
    if codec.k_basis is None or codec.v_basis is None:
        k, v = map(out_of_rotation, widths)
    else:
        k, v = (
            mx.array(np.linalg.inv(np.array(each.into.astype(mx.float32), np.float64)).astype(np.float32))
            for each in (codec.k_basis, codec.v_basis)
        )
    return k, v


def plain_attention(
    queries: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Return causal attention in float32, with explicit scores summed elementwise: GPUs multiply float32 in fewer bits.

    `k` and `v` are [rows, kv_heads, tokens, …], `queries` [rows, heads, n, k_dim] the last n tokens; the result is
    [rows, heads, n, v_dim].
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
