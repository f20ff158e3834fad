"""Geometries of models, small and real, for attention."""

from dataclasses import replace

import mlx.core as mx

from agentmem.kv.bits import BITS
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import KVFormat


def geometry(
    kv_heads: int = 2, v_dim: int = 64, dtype: mx.Dtype = mx.float32, bits: int = 4, window: int = 0, **other: int
) -> Geometry:
    k_dim, heads, group = other.get("k_dim", 64), other.get("heads", 4), other.get("group", 32)
    full = LayerGroup((0, 2), kv_heads, k_dim, v_dim)
    sliding = LayerGroup((1,), kv_heads, k_dim, v_dim, window) if window else None
    return Geometry(heads, dtype, KVFormat(bits, bits, group), full, sliding)


SHAPES = [
    geometry(),
    geometry(kv_heads=1),
    geometry(kv_heads=4),
    geometry(v_dim=32),
    geometry(bits=8),
    geometry(window=40),
    geometry(window=3),
]

OF_16_BITS = [
    geometry(kv_heads=8, heads=32, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64),  # Llama 3.1 8B
    geometry(kv_heads=8, heads=16, k_dim=256, v_dim=256, dtype=mx.bfloat16, group=64, window=512),  # Gemma 3 12B
    geometry(kv_heads=16, heads=16, k_dim=192, v_dim=128, dtype=mx.bfloat16, group=64),  # DeepSeek-V2-Lite
    geometry(kv_heads=8, heads=64, k_dim=64, v_dim=64, dtype=mx.bfloat16, group=64, window=128),  # GPT-OSS
    geometry(kv_heads=2, heads=14, k_dim=64, v_dim=64, dtype=mx.float16, group=64),  # Qwen 2.5 0.5B
    geometry(kv_heads=8, heads=32, k_dim=96, v_dim=96, dtype=mx.float16, group=32),
    geometry(kv_heads=8, heads=32, k_dim=128, v_dim=128, dtype=mx.bfloat16, bits=8, group=64),
]

NARROW = [
    geometry(heads=2, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64),
    geometry(heads=2, k_dim=192, v_dim=128, dtype=mx.bfloat16, group=64),
    geometry(heads=1, kv_heads=1, k_dim=256, v_dim=256, dtype=mx.float16, group=64),
    geometry(heads=7, kv_heads=1, dtype=mx.float16, group=64),
    geometry(k_dim=96, v_dim=96, dtype=mx.bfloat16, window=40),
]

PAIRS = list(zip(BITS, (*BITS[2:], *BITS[:2]), strict=True))
"""All bits of K and all of V."""


def random(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def with_bits(made: Geometry, k: int, v: int, scheme: str | None = None) -> Geometry:
    return replace(made, format=replace(made.format, k_bits=k, v_bits=v, scheme=scheme or made.format.scheme))
