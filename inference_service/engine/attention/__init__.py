"""Attention over quantized K and V: `backend` is what models call, `latents` attends over latents as arrays; kernels
for NVIDIA GPUs are in the .cu files, as `paged.attention` uses them, one for Apple's in the .metal files, as
`paged.metal_attention` does, and `chunks` joins their results. `self_test` proves them right at load.
"""

from inference_service.engine.attention.backend import AttentionBackend
from inference_service.engine.attention.reports import PathReport

__all__ = ["AttentionBackend", "PathReport"]
