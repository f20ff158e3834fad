"""Attention over quantized K and V. Models call `backend`; `latents` attends over latents as arrays. `paged.attention`
has kernels for NVIDIA GPUs; `chunks` joins their results. `self_test` verifies them at load, by `reference`.
"""

from inference_service.engine.attention.backend import AttentionBackend
from inference_service.engine.attention.reports import PathReport

__all__ = ["AttentionBackend", "PathReport"]
