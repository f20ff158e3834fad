"""Multi-head latent attention for few queries. K is the latent and the value; V is the key's part with positions: a
score is a sum of two products.
"""

from typing import Any, Final

import mlx.core as mx

from inference_service.engine.paged.passes import banded

MOST_ABSORBED: Final = 64
"""A layer of DeepSeek-V2-Lite over 8,192 tokens takes 0.53 ms for 64 and 1.00 for 128, by all heads 0.75 and 0.83
(H200).
"""


def over_arrays(
    queries: mx.array, rotary_queries: mx.array, latents: mx.array, rotary: mx.array, scale: float, mask: Any
) -> mx.array:
    """Attend over latents [rows, 1, tokens, k_dim] and rotary keys."""
    q, r = _folded(queries * scale), _folded(rotary_queries * scale)
    weights = _weights((q @ latents.swapaxes(2, 3), r @ rotary.swapaxes(2, 3)), queries.shape, mask)
    rows, heads, n, _ = queries.shape
    return (weights @ latents).reshape(rows, heads, n, -1)


def _folded(queries: mx.array) -> mx.array:
    rows, heads, n, width = queries.shape
    return queries.reshape(rows, 1, heads * n, width)


def _weights(parts: tuple[mx.array, mx.array], shape: tuple[int, ...], mask: Any) -> mx.array:
    """Softmax in float32 over summed scores [rows, 1, heads * n, tokens]."""
    rows, heads, n, _ = shape
    tokens, dtype = parts[0].shape[-1], parts[0].dtype
    scores = parts[0].astype(mx.float32) + parts[1].astype(mx.float32)
    if mask is not None:
        visible = banded(n, tokens, tokens) if isinstance(mask, str) else mask
        scores = mx.where(visible, scores.reshape(rows, heads, n, tokens), -mx.inf).reshape(scores.shape)
    return mx.softmax(scores, axis=-1).astype(dtype)
