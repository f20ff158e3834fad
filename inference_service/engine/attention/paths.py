"""The ways to compute attention over Q4: two for many queries of a row, several for one.

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
DEQUANTIZE_MATMUL = "dequantize+matmul"

_FEW, _FEW_SCORES = 512, 1 << 26
"""Queries of a row, and scores of a layer (heads x queries x tokens), up to which spelling scores out costs less than
a plan: 50 queries over 40K tokens with 32 heads."""


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
    weights = _weights(scores[:, :, :, None], mask, sinks)[:, :, :, 0]
    out = mx.quantized_matmul(weights, *values, transpose=False, group_size=by.group_size, bits=by.bits)
    return out.reshape(rows, heads, 1, -1)


def dequantized(
    queries: mx.array, keys: Quantized, values: Quantized, by: Quantization, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """Any number of queries: this layer's K and V dequantized, then the fused kernel; the scores never exist."""
    k = mx.dequantize(*keys, group_size=by.group_size, bits=by.bits)
    v = mx.dequantize(*values, group_size=by.group_size, bits=by.bits)
    return fused(queries, k, v, scale, mask, sinks)


def spelled_out(
    queries: mx.array, keys: Quantized, values: Quantized, by: Quantization, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """A few queries: this layer's K and V dequantized, and two products of matrices with the scores between them.

    cuDNN, MLX's fused kernel for NVIDIA GPUs, makes a plan for each pair of numbers of queries and of tokens, and few
    turns have a pair that was there before: on an H200 that is 45 to 60 ms of a turn of 50 tokens, whose layers take as
    long (Llama 3.1 8B, 1K to 32K tokens). These products need no plan. Scores are float32 up to the softmax, as in the
    fused kernel: rounded to bfloat16, those of real models would be off by a tenth.
    """
    rows, heads, n, width = queries.shape
    k = mx.dequantize(*keys, group_size=by.group_size, bits=by.bits)
    v = mx.dequantize(*values, group_size=by.group_size, bits=by.bits)
    kv_heads, tokens = k.shape[1:3]
    folded = (queries.astype(mx.float32) * scale).reshape(rows, kv_heads, -1, width)
    scores = (folded @ k.astype(mx.float32).swapaxes(-1, -2)).reshape(rows, kv_heads, -1, n, tokens)
    weights = _weights(scores, mask, sinks).astype(v.dtype).reshape(rows, kv_heads, -1, tokens)
    return (weights @ v).reshape(rows, heads, n, -1)


def _weights(scores: mx.array, mask: Any, sinks: mx.array | None) -> mx.array:
    """The softmax over scores [rows, kv_heads, group, n, tokens] that a mask leaves, with sinks in it."""
    kv_heads, _, n, tokens = scores.shape[1:]
    if isinstance(mask, str):  # "causal"
        mask = mx.arange(tokens - n, tokens)[:, None] >= mx.arange(tokens)
    if mask is not None:
        scores = mx.where(mask[:, :, None] if mask.ndim == 4 else mask, scores, -mx.inf)
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    sink = mx.broadcast_to(sinks.reshape(1, kv_heads, -1, 1, 1), (*scores.shape[:4], 1)).astype(scores.dtype)
    return mx.softmax(mx.concatenate([scores, sink], axis=-1), axis=-1, precise=True)[..., :-1]


def fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
    """The fused kernel; V is padded to K's width where it is narrower (MLA), because no kernel takes both."""
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
    return out[..., :width]


ONE_QUERY: dict[str, Path] = {FLASH_DECODING: packed, QUANTIZED_MATMUL: unfused, DEQUANTIZE_FUSED: dequantized}
"""The ways for one query per row, the one to prefer where nothing was measured first."""
MANY_QUERIES: dict[str, Path] = {DEQUANTIZE_FUSED: dequantized, DEQUANTIZE_MATMUL: spelled_out}
"""The ways for more than one."""


def many_queries() -> list[str]:
    """Those of `MANY_QUERIES` that are taken on this backend."""
    return [name for name in MANY_QUERIES if name != DEQUANTIZE_MATMUL or available()]


def most_of_few(heads: int, tokens: int) -> int:
    """The most queries over so many tokens whose scores are spelled out on this backend; 0 where there are none."""
    found = min(_FEW, _FEW_SCORES // (heads * tokens))
    return found if found > 1 and available() else 0


def for_many(queries: mx.array, tokens: int) -> str:
    """Which of them computes queries [rows, heads, n, k_dim] over so many tokens."""
    _, heads, n, _ = queries.shape
    return DEQUANTIZE_MATMUL if n <= most_of_few(heads, tokens) else DEQUANTIZE_FUSED


def candidates() -> list[str]:
    """Those of `ONE_QUERY` that this backend could run, in their order. The self-test finds which of them do."""
    return [name for name in ONE_QUERY if name != FLASH_DECODING or available()]
