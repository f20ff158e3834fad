"""What computing takes at its peak besides weights and KV: measured on the model itself, and remembered.

Prefill has the peaks: a chunk's hidden states, and one layer's K and V dequantized over the whole context. The first
part is measured where the backend frees memory as it likes; the second is arithmetic.
"""

import importlib.metadata
from pathlib import Path
from typing import Any

import mlx.core as mx

from inference_service.engine.geometry import Geometry
from inference_service.engine.remembered import Remembered
from inference_service.memory.chunks import LARGEST_CHUNK

_ON_CPU = (64, 128)
"""Tokens of two small chunks: a CPU takes seconds for a large one, and the peak grows by the token."""


class Activations:
    """Peaks by device, version of MLX and fingerprint, remembered in one JSON file. Engine thread only."""

    def __init__(self, memory: Path) -> None:
        self._memory = Remembered(memory)

    def of(self, fingerprint: str, network: Any, geometry: Geometry, context_length: int) -> int:
        """Bytes that the model takes at its peak, at the end of its context. Measures what is not remembered."""
        key = _key(fingerprint)
        chunk = self._memory.get(key)
        if not isinstance(chunk, int):
            chunk = chunk_bytes(network, geometry)
            self._memory.put(key, chunk)
        return chunk + dequantized_bytes(geometry, context_length)

    def remembered(self, fingerprint: str, geometry: Geometry, context_length: int) -> int | None:
        """The same where it needs no measuring; else None. Anybody's thread."""
        chunk = self._memory.get(_key(fingerprint))
        return chunk + dequantized_bytes(geometry, context_length) if isinstance(chunk, int) else None


def chunk_bytes(network: Any, geometry: Geometry) -> int:
    """The peak of the largest chunk of a prompt, over weights and KV. On a GPU this compiles its kernels, too."""
    if mx.default_device().type == mx.DeviceType.cpu:
        small, large = _ON_CPU
        first, second = _peak(network, geometry, small), _peak(network, geometry, large)
        by_token = max(0.0, (second - first) / (large - small))
        peak = second + by_token * (LARGEST_CHUNK - large)
    else:
        peak = _peak(network, geometry, LARGEST_CHUNK)
    mx.clear_cache()
    return int(peak)


def dequantized_bytes(geometry: Geometry, context_length: int) -> int:
    """One layer's K and V in the compute dtype."""
    full = geometry.full
    return context_length * full.kv_heads * (full.k_dim + full.v_dim) * int(geometry.dtype.size)


def _peak(network: Any, geometry: Geometry, tokens: int) -> int:
    caches = geometry.new_caches()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    network(mx.zeros((1, tokens), dtype=mx.uint32), cache=caches)
    mx.eval([cache.state for cache in caches])
    kept = sum(int(cache.buffers.nbytes) for cache in caches)
    return max(0, int(mx.get_peak_memory()) - int(before) - kept)


def _key(fingerprint: str) -> str:
    return f"{mx.device_info()['device_name']}; mlx {importlib.metadata.version('mlx')}; {fingerprint}"
