"""The ways to compute attention over Q4: two for many queries of a row, several for one.

All take queries [rows, heads, n, k_dim], K and V [rows, kv_heads, tokens, …] as a cache returns them, and the mask that
its `make_mask` gave, and return [rows, heads, n, v_dim] in the dtype of the queries. `sinks` [heads] are logits that
take part in the softmax and in nothing else (GPT-OSS).
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from inference_service.engine.attention.cuda import available, flash_decoding, flash_prefill
from inference_service.engine.quantization import KVFormat, Quantized, dequantize
from inference_service.engine.scheduling import SMALLEST_STEP

FLASH_DECODING = "flash_decoding"
QUANTIZED_MATMUL = "quantized_matmul"
DEQUANTIZE_FUSED = "dequantize+fused"
FLASH_PREFILL = "flash_prefill"


Path = Callable[[mx.array, Quantized, Quantized, KVFormat, float, Any, mx.array | None], mx.array]
"""(queries, K, V, their format, scale, mask, sinks) to the output."""


def unfused(
    queries: mx.array, keys: Quantized, values: Quantized, by: KVFormat, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """One query: two quantized matmuls, the GQA group folded into the query rows; the scores are spelled out."""
    rows, heads, _, width = queries.shape
    kv_heads = keys.weights.shape[1]
    folded = (queries * scale).reshape(rows, kv_heads, heads // kv_heads, width)
    scores = mx.quantized_matmul(folded, *keys, transpose=True, **by.k._asdict())
    weights = _weights(scores[:, :, :, None], mask, sinks)[:, :, :, 0]
    out = mx.quantized_matmul(weights, *values, transpose=False, **by.v._asdict())
    return out.reshape(rows, heads, 1, -1)


def dequantized(
    queries: mx.array, keys: Quantized, values: Quantized, by: KVFormat, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """Any number of queries: this layer's K and V dequantized, then the fused kernel; the scores never exist."""
    return fused(queries, dequantize(keys, by.k), dequantize(values, by.v), scale, mask, sinks)


def _weights(scores: mx.array, mask: Any, sinks: mx.array | None) -> mx.array:
    """The softmax over scores [rows, kv_heads, group, 1, tokens] that a mask leaves, with sinks in it."""
    kv_heads = scores.shape[1]
    if mask is not None:
        scores = mx.where(mask[:, :, None] if mask.ndim == 4 else mask, scores, -mx.inf)
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    sink = mx.broadcast_to(sinks.reshape(1, kv_heads, -1, 1, 1), (*scores.shape[:4], 1)).astype(scores.dtype)
    return mx.softmax(mx.concatenate([scores, sink], axis=-1), axis=-1, precise=True)[..., :-1]


def fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
    """MLX's fused kernel over k [rows, kv_heads, tokens, k_dim] and v [rows, kv_heads, tokens, v_dim].

    V is padded to K's width where it is narrower (MLA), because no kernel takes both.
    """
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
    return out[..., :width]


ONE_QUERY: dict[str, Path] = {FLASH_DECODING: flash_decoding, QUANTIZED_MATMUL: unfused, DEQUANTIZE_FUSED: dequantized}
"""The ways for one query per row, the one to prefer where nothing was measured first."""
MANY_QUERIES: dict[str, Path] = {DEQUANTIZE_FUSED: dequantized, FLASH_PREFILL: flash_prefill}
"""The ways for more than one."""


def many_queries() -> list[str]:
    """Those of `MANY_QUERIES` that this backend could run. The self-test finds which of them do."""
    return [name for name in MANY_QUERIES if name != FLASH_PREFILL or available()]


def few(n: int) -> bool:
    """Whether so many queries of a row are for `FLASH_PREFILL`, where it is right; all others are for the fused kernel.

    It costs less than a plan of cuDNN's: 512 queries over 32K tokens take it 1.9 ms a layer, since each block of rows
    dequantizes K and V again, and cuDNN 0.6 and 1.6 for its plan, spread over 32 layers (H200). But chunks of long
    prompts have sizes that come again, and their plans with them.
    """
    return 1 < n < SMALLEST_STEP


def candidates() -> list[str]:
    """Those of `ONE_QUERY` that this backend could run, in their order. The self-test finds which of them do."""
    return [name for name in ONE_QUERY if name != FLASH_DECODING or available()]
