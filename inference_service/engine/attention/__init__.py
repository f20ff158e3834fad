"""Attention over quantized caches: the backend that models call, and the paths that compute what they ask for.

`backend` installs itself in models; `paths` are the ways for many queries of a row and for one; those in
`flash_prefill` and `flash_decoding` are kernels for NVIDIA GPUs, and that in `metal_flash_decoding` is one for Apple's,
where it was never timed; `latents` are the ways over latents, of which
`absorbed` chooses. `self_test` proves them right at load, `trials` says which are; `speed` measures them and says which
is taken where.
"""

from inference_service.engine.attention.backend import AttentionBackend
from inference_service.engine.attention.latents import LATENT_FLASH
from inference_service.engine.attention.paths import (
    DEQUANTIZE_FUSED,
    FLASH_DECODING,
    FLASH_PREFILL,
    METAL_FLASH_DECODING,
    QUANTIZED_MATMUL,
)
from inference_service.engine.attention.speed import PathChoice, PathSpeeds
from inference_service.engine.attention.trials import PathReport

__all__ = [
    "DEQUANTIZE_FUSED",
    "FLASH_DECODING",
    "FLASH_PREFILL",
    "LATENT_FLASH",
    "METAL_FLASH_DECODING",
    "QUANTIZED_MATMUL",
    "AttentionBackend",
    "PathChoice",
    "PathReport",
    "PathSpeeds",
]
