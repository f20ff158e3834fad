"""The ways to compute attention over Q4: one for many queries, several for one query per row.

All take queries [rows, heads, n, k_dim], what a cache shows, and the mask that its `make_mask` gave, and return [rows,
heads, n, v_dim]. `sinks` [heads] are logits that take part in the softmax and in nothing else (GPT-OSS).
"""

from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx

from inference_service.engine.attention.flash_decoding import available, flash_decoding
from inference_service.engine.caches import Quantized

FLASH_DECODING = "flash_decoding"
QUANTIZED_MATMUL = "quantized_matmul"
DEQUANTIZE_FUSED = "dequantize+fused"


class Quantization(Protocol):
    """How K and V are quantized; every Q4 cache says it."""

    bits: int
    group_size: int


Path = Callable[[mx.array, Quantized, Quantized, Quantization, float, Any, mx.array | None], mx.array]
"""(queries, K, V, their quantization, scale, mask, sinks) to the output."""


def packed(
    queries: mx.array, keys: Quantized, values: Quantized, by: Quantization, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """One query: our own kernels over packed K and V."""
    return flash_decoding(queries, keys, values, by.bits, by.group_size, scale, mask, sinks)


def unfused(
    queries: mx.array, keys: Quantized, values: Quantized, by: Quantization, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """One query: two quantized matmuls, the GQA group folded into the query rows; the scores are spelled out."""
    rows, heads, _, width = queries.shape
    kv_heads = keys.weights.shape[1]
    folded = (queries * scale).reshape(rows, kv_heads, heads // kv_heads, width)
    scores = mx.quantized_matmul(folded, *keys, transpose=True, group_size=by.group_size, bits=by.bits)
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.reshape(1, kv_heads, -1, 1), (*scores.shape[:3], 1))
        scores = mx.concatenate([scores, sink.astype(scores.dtype)], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    if sinks is not None:
        weights = weights[..., :-1]
    out = mx.quantized_matmul(weights, *values, transpose=False, group_size=by.group_size, bits=by.bits)
    return out.reshape(rows, heads, 1, -1)


def dequantized(
    queries: mx.array, keys: Quantized, values: Quantized, by: Quantization, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """Any number of queries: this layer's K and V dequantized, then the fused kernel; the scores never exist."""
    k = mx.dequantize(*keys, group_size=by.group_size, bits=by.bits)
    v = mx.dequantize(*values, group_size=by.group_size, bits=by.bits)
    return fused(queries, k, v, scale, mask, sinks)


def fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
    """The fused kernel; V is padded to K's width where it is narrower (MLA), because no kernel takes both."""
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
    return out[..., :width]


ONE_QUERY: dict[str, Path] = {FLASH_DECODING: packed, QUANTIZED_MATMUL: unfused, DEQUANTIZE_FUSED: dequantized}
"""The ways for one query per row, the one to prefer where nothing was measured first."""


def candidates() -> list[str]:
    """Those of `ONE_QUERY` that this backend could run, in their order. The self-test finds which of them do."""
    return [name for name in ONE_QUERY if name != FLASH_DECODING or available()]
