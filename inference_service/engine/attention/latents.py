"""The ways to compute attention over packed latents (multi-head latent attention), for one query or a few.

What a cache has as K of one head is the latent, which is the value as well; what it has as V is the part of the key
that has a position. So a score is a sum of two products. All heads see the same tokens: they are folded into the rows
of a product.

All take queries [rows, heads, n, k_dim] in the space of latents and [rows, heads, n, v_dim] with positions, latents and
rotary keys [rows, 1, tokens, …] as a cache returns them, its codec, and the mask that its `make_mask` gave; they return
latents [rows, heads, n, k_dim], in the dtype of the queries. A mean of latents adds to all scores of a query alike, and
comes back at the output.
"""

from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.attention.flash_latents import flash_latents
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import available
from inference_service.engine.paged.passes import banded
from inference_service.engine.quantization import Quantized

LATENT_FLASH: Final = "latent_flash"
LATENT_QUANTIZED_MATMUL: Final = "latent_quantized_matmul"
LATENT_DEQUANTIZE: Final = "latent_dequantize"

LatentPath = Callable[[mx.array, mx.array, Quantized, Quantized, KVCodec, float, Any], mx.array]
"""(queries, queries with positions, latents, rotary keys, their codec, scale, mask) to the output."""


def unfused(
    queries: mx.array, rotary_queries: mx.array, latents: Quantized, rotary: Quantized, codec: KVCodec, scale: float,
    mask: Any,
) -> mx.array:  # fmt: skip
    """Three quantized matmuls."""
    k, v = codec.format.k._asdict(), codec.format.v._asdict()
    q, r = (_folded(codec.queries(each, scale)) for each in (queries, rotary_queries))
    scores = mx.quantized_matmul(q, *latents, transpose=True, **k), mx.quantized_matmul(r, *rotary, transpose=True, **v)
    weights = _weights(scores, queries.shape, mask)
    return _outputs(mx.quantized_matmul(weights, *latents, transpose=False, **k), queries.shape, codec)


def dequantized(
    queries: mx.array, rotary_queries: mx.array, latents: Quantized, rotary: Quantized, codec: KVCodec, scale: float,
    mask: Any,
) -> mx.array:  # fmt: skip
    """This layer's latents dequantized."""
    k, v = codec.dequantize(latents, rotary, with_means=False)
    q, r = (_folded(codec.queries(each, scale)) for each in (queries, rotary_queries))
    weights = _weights((q @ k.swapaxes(2, 3), r @ v.swapaxes(2, 3)), queries.shape, mask)
    return _outputs(weights @ k, queries.shape, codec)


def over_arrays(
    queries: mx.array, rotary_queries: mx.array, latents: mx.array, rotary: mx.array, scale: float, mask: Any
) -> mx.array:
    """Over latents [rows, 1, tokens, k_dim] and rotary keys as arrays."""
    q, r = _folded(queries * scale), _folded(rotary_queries * scale)
    weights = _weights((q @ latents.swapaxes(2, 3), r @ rotary.swapaxes(2, 3)), queries.shape, mask)
    rows, heads, n, _ = queries.shape
    return (weights @ latents).reshape(rows, heads, n, -1)


ABSORBED: dict[str, LatentPath] = {
    LATENT_FLASH: flash_latents,
    LATENT_QUANTIZED_MATMUL: unfused,
    LATENT_DEQUANTIZE: dequantized,
}
"""The ways, the one to prefer where nothing was measured first."""


def latent_candidates() -> list[str]:
    """Those of `ABSORBED` that this backend could run, in their order. The self-test finds which of them do."""
    return [name for name in ABSORBED if name != LATENT_FLASH or available()]


def _folded(queries: mx.array) -> mx.array:
    """[rows, 1, heads times n, width]."""
    rows, heads, n, width = queries.shape
    return queries.reshape(rows, 1, heads * n, width)


def _weights(parts: tuple[mx.array, mx.array], shape: tuple[int, ...], mask: Any) -> mx.array:
    """The softmax over sums of scores [rows, 1, heads times n, tokens] that a mask leaves, in float32 until the end."""
    rows, heads, n, _ = shape
    tokens, dtype = parts[0].shape[-1], parts[0].dtype
    scores = parts[0].astype(mx.float32) + parts[1].astype(mx.float32)
    if mask is not None:
        visible = banded(n, tokens, tokens) if isinstance(mask, str) else mask
        scores = mx.where(visible, scores.reshape(rows, heads, n, tokens), -mx.inf).reshape(scores.shape)
    return mx.softmax(scores, axis=-1).astype(dtype)


def _outputs(outputs: mx.array, shape: tuple[int, ...], codec: KVCodec) -> mx.array:
    rows, heads, n, _ = shape
    return codec.keys_back(outputs.reshape(rows, heads, n, -1))
