"""Attention over quantized K and V. Models call `backend`; kernels for NVIDIA GPUs are in `paged.attention`."""

from inference_service.engine.attention.backend import AttentionBackend
from inference_service.engine.attention.reports import PathReport

__all__ = ["AttentionBackend", "PathReport"]
