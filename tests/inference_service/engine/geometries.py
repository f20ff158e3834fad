"""Random arrays, small geometries, and how far results in a dtype may be off by rounding."""

import mlx.core as mx

from agentmem.kv.bits import BITS
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import KVFormat

PAIRS = list(zip(BITS, (*BITS[2:], *BITS[:2]), strict=True))
"""All bits of K and all of V."""


def geometry(
    kv_heads: int = 2, v_dim: int = 64, dtype: mx.Dtype = mx.float32, bits: int = 4, window: int = 0, **other: int
) -> Geometry:
    k_dim, heads, group = other.get("k_dim", 64), other.get("heads", 4), other.get("group", 32)
    full = LayerGroup((0, 2), kv_heads, k_dim, v_dim)
    sliding = LayerGroup((1,), kv_heads, k_dim, v_dim, window) if window else None
    return Geometry(heads, dtype, KVFormat(bits, bits, group), full, sliding)


def random(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
