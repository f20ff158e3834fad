"""Random arrays, small geometries, and how far results in a dtype may be off by rounding."""

from typing import Any

import mlx.core as mx

from agentmem.kv.bits import BITS
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import ROTATED, KVFormat

PAIRS = list(zip(BITS, (*BITS[2:], *BITS[:2]), strict=True))
"""All bits of K and all of V."""


def geometry(
    kv_heads: int = 2, v_dim: int = 64, dtype: mx.Dtype = mx.float32, bits: int | tuple[int, int] = 4, **other: Any
) -> Geometry:
    """Return two layers with full attention, and one between them if there is a `window`."""
    k_dim, window = other.get("k_dim", 64), other.get("window")
    k_bits, v_bits = bits if isinstance(bits, tuple) else (bits, bits)
    format = KVFormat(k_bits, v_bits, other.get("group", 32), other.get("scheme", ROTATED))
    full = LayerGroup((0, 2), kv_heads, k_dim, v_dim)
    sliding = LayerGroup((1,), kv_heads, k_dim, v_dim, window) if window else None
    return Geometry(other.get("heads", 4), dtype, format, full, sliding, latents=other.get("latents", False))


def random(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
