"""The ways to compute attention over quantized K and V: two for many queries of a row, several for one.

All take queries [rows, heads, n, k_dim] as the model has them, K and V [rows, kv_heads, tokens, …] as a cache returns
them, its codec, and the mask that its `make_mask` gave. They return [rows, heads, n, v_dim] as the model wants it, in
the dtype of the queries; v_dim is filled up to whole groups. `sinks` [heads] are logits that take part in the softmax
and in nothing else (GPT-OSS).
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from inference_service.engine.attention.flash_decoding import flash_decoding
from inference_service.engine.attention.flash_prefill import flash_prefill
from inference_service.engine.attention.metal_flash_decoding import metal_flash_decoding
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import available
from inference_service.engine.metal_kernel import available as metal_available
from inference_service.engine.quantization import Quantized
from inference_service.engine.scheduling import SMALLEST_STEP

FLASH_DECODING = "flash_decoding"
QUANTIZED_MATMUL = "quantized_matmul"
DEQUANTIZE_FUSED = "dequantize+fused"
FLASH_PREFILL = "flash_prefill"
METAL_FLASH_DECODING = "metal_flash_decoding"


Path = Callable[[mx.array, Quantized, Quantized, KVCodec, float, Any, mx.array | None], mx.array]
"""(queries, K, V, their codec, scale, mask, sinks) to the output."""


def unfused(
    queries: mx.array, keys: Quantized, values: Quantized, codec: KVCodec, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """One query: two quantized matmuls, the GQA group folded into the query rows; the scores are spelled out."""
    queries = codec.queries(queries, scale)
    rows, heads, _, width = queries.shape
    kv_heads = keys.weights.shape[1]
    folded = queries.reshape(rows, kv_heads, heads // kv_heads, width)
    scores = mx.quantized_matmul(folded, *keys, transpose=True, **codec.format.k._asdict())
    logits = None if sinks is None else codec.sink_logits(queries, 1.0, sinks)
    weights = _weights(scores, mask, logits)
    out = mx.quantized_matmul(weights, *values, transpose=False, **codec.format.v._asdict())
    left = None if sinks is None else weights.sum(axis=-1).reshape(rows, heads, 1, 1)
    return codec.outputs(out.reshape(rows, heads, 1, -1), left)


def dequantized(
    queries: mx.array, keys: Quantized, values: Quantized, codec: KVCodec, scale: float, mask: Any, sinks: Any
) -> mx.array:
    """Any number of queries: this layer's K and V dequantized, then the fused kernel; the scores never exist.

    With sinks K and V get their means back first: the kernel takes a sink's logit for all queries alike.
    """
    k, v = codec.dequantize(keys, values, with_means=sinks is not None)
    out = fused(codec.queries(queries), k, v, scale, mask, sinks)
    return codec.outputs(out, with_means=sinks is not None)


def in_pieces(
    window: int,
    queries: mx.array,
    keys: Quantized,
    values: Quantized,
    codec: KVCodec,
    scale: float,
    mask: mx.array,
    sinks: mx.array | None,
) -> mx.array:
    """As `dequantized`, for more queries of one sequence than its layer's window: at most a window of them at once,
    each piece over the keys it can see. `mask` is bool [n, tokens].
    """
    k, v = codec.dequantize(keys, values, with_means=sinks is not None)
    queries = codec.queries(queries)
    n, total = queries.shape[2], k.shape[2]
    pieces = []
    for start in range(0, n, window):
        end = min(n, start + window)
        first, last = max(0, total - n + start - window + 1), total - n + end
        piece = mask[start:end, first:last]
        pieces.append(fused(queries[:, :, start:end], k[:, :, first:last], v[:, :, first:last], scale, piece, sinks))
    out = mx.concatenate(pieces, axis=2)
    return codec.outputs(out, with_means=sinks is not None)


def _weights(scores: mx.array, mask: mx.array | None, sinks: mx.array | None) -> mx.array:
    """The softmax over scores [rows, kv_heads, group, tokens] that a mask leaves, with sinks in it.

    `mask` broadcasts to [rows, 1, 1, tokens]; `sinks` are float32 logits [rows, heads, 1], one for each query.
    """
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    with_sink = mx.concatenate([scores.astype(mx.float32), sinks.reshape(*scores.shape[:3], 1)], axis=-1)
    return mx.softmax(with_sink, axis=-1)[..., :-1].astype(scores.dtype)


def fused(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
    """MLX's fused kernel over k [rows, kv_heads, tokens, k_dim] and v [rows, kv_heads, tokens, v_dim].

    V is padded to K's width where it is narrower (MLA), because no kernel takes both.
    """
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = mx.pad(v, [(0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)])
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
    return out[..., :width]


ONE_QUERY: dict[str, Path] = {
    FLASH_DECODING: flash_decoding,
    QUANTIZED_MATMUL: unfused,
    DEQUANTIZE_FUSED: dequantized,
    METAL_FLASH_DECODING: metal_flash_decoding,
}
"""The ways for one query per row, the one to prefer where nothing was measured first; last the one that was never timed
on a device that it is for, so that it is taken only where it is measured to be the fastest."""
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
    devices = {FLASH_DECODING: available, METAL_FLASH_DECODING: metal_available}
    return [name for name in ONE_QUERY if name not in devices or devices[name]()]
