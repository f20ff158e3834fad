"""Caches of quantized KV: K and V are packed the moment they are computed, and attention only sees what was packed.

They follow mlx-lm's cache protocol, so its models and its GenerationBatch use them unchanged: one class per sequence at
rest and one per batch of rows, for layers with full attention and for layers with a sliding window.
"""

from inference_service.engine.caches.buffers import KVBuffers
from inference_service.engine.caches.full import BatchQuantizedKVCache, QuantizedKVCache
from inference_service.engine.caches.sliding import BatchSlidingQuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.caches.traced import TracedKVCache

__all__ = [
    "BatchQuantizedKVCache",
    "BatchSlidingQuantizedKVCache",
    "KVBuffers",
    "QuantizedKVCache",
    "SlidingQuantizedKVCache",
    "TracedKVCache",
]
