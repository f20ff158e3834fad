"""Attention over quantized K and V. Models call `backend`; kernels for NVIDIA GPUs are in `paged.attention`."""

from dataclasses import dataclass

from inference_service.engine.attention.backend import AttentionBackend

__all__ = ["AttentionBackend", "PathReport"]


@dataclass(frozen=True)
class PathReport:
    """`relative_error` is of the largest output."""

    phase: str
    path: str
    relative_error: float
    note: str = ""
