"""Attention over Q4 caches: the seam that models come through, and the ways to compute what they ask for.

`seam` puts itself into models; `paths` are the ways for many queries of a row and for one, of which `flash_prefill` and
`flash_decoding` are kernels for NVIDIA GPUs (`cuda_kernels`); `choice` says which way for one is taken where;
`self_test` proves them right, and `speed` measures them.
"""

from inference_service.engine.attention.choice import PathChoice
from inference_service.engine.attention.paths import (
    DEQUANTIZE_FUSED,
    FLASH_DECODING,
    FLASH_PREFILL,
    QUANTIZED_MATMUL,
)
from inference_service.engine.attention.seam import AttentionSeam, PathReport
from inference_service.engine.attention.speed import PathSpeeds

__all__ = [
    "DEQUANTIZE_FUSED",
    "FLASH_DECODING",
    "FLASH_PREFILL",
    "QUANTIZED_MATMUL",
    "AttentionSeam",
    "PathChoice",
    "PathReport",
    "PathSpeeds",
]
