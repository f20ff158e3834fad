"""What computing takes at its peak besides weights and KV: measured on the model itself, and remembered.

Prefill has the peaks. A chunk's hidden states grow by its tokens; K and V, dequantized, by the context's keys (of one
layer where memory is freed as it goes, of all of them where a backend holds on to it, as CUDA's does); and where there
is no fused attention for a model's heads (on a CPU for none, elsewhere for some widths), the scores grow by pairs of
both, and are most of it in a long context.

So a chunk is measured at the beginning of a context, and what a key and a pair take by chunks of two sizes behind two
lengths of keys, both so long that attention has the peak. The sum is above the peak where the parts are not in memory
together.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from inference_service.engine.geometry import Caches, Geometry
from inference_service.engine.remembered import Remembered
from inference_service.memory.chunks import LARGEST_CHUNK, latest_chunks

_ON_CPU = (64, 128)
"""Tokens of two small chunks: a CPU takes seconds for a large one, and hidden states grow by the token."""
_LATE = (64, 256)
"""Tokens of two chunks behind many keys; what does not grow by them is put down to the keys alone."""
_TIMES = 2
"""What is freed late by chance must not make the difference of two peaks too small."""
_MASK_BYTES = 3
"""Of a pair, while a sliding layer's mask is made: two comparisons, and both together."""
_MOST_KEYS = 4_096
"""Scores of so many keys are more than a layer's hidden states. Half of them tell as much on a CPU."""


@dataclass(frozen=True)
class Peaks:
    """Bytes of the largest chunk at the beginning of a context, of each key that a chunk sees, and of each pair of a
    chunk's token and a key."""

    chunk_bytes: int
    key_bytes: float
    pair_bytes: float

    def at_worst(self, geometry: Geometry, context_length: int) -> int:
        """Bytes at the worst position of a context."""
        key_bytes = max(self.key_bytes, dequantized_bytes(geometry, 1))
        late = ((self.pair_bytes * tokens + key_bytes) * keys for tokens, keys in latest_chunks(context_length))
        return self.chunk_bytes + int(max(late))


Measure = Callable[[Any, Geometry, int], Peaks]


class Activations:
    """Peaks by device, version of MLX and fingerprint, remembered in one JSON file. Engine thread only."""

    def __init__(self, memory: Path, measure: Measure | None = None) -> None:
        self._memory = Remembered(memory)
        self._measure = measure or measured

    def of(self, fingerprint: str, network: Any, geometry: Geometry, context_length: int) -> int:
        """Bytes that the model takes at its peak, wherever in its context. Measures what is not remembered."""
        peaks = self._remembered(fingerprint, context_length)
        if peaks is None:
            peaks = self._measure(network, geometry, context_length)
            self._memory.put(_key(fingerprint, context_length), asdict(peaks))
        return peaks.at_worst(geometry, context_length)

    def remembered(self, fingerprint: str, geometry: Geometry, context_length: int) -> int | None:
        """The same where it needs no measuring; else None. Anybody's thread."""
        peaks = self._remembered(fingerprint, context_length)
        return None if peaks is None else peaks.at_worst(geometry, context_length)

    def _remembered(self, fingerprint: str, context_length: int) -> Peaks | None:
        try:
            known = self._memory.get(_key(fingerprint, context_length))
            return Peaks(int(known["chunk_bytes"]), float(known["key_bytes"]), float(known["pair_bytes"]))
        except (KeyError, TypeError, ValueError):
            return None


def measured(network: Any, geometry: Geometry, context_length: int) -> Peaks:
    """The peaks over weights and KV. On a GPU this compiles the kernels, too. Engine thread; KV of 4096 tokens."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    chunk = _extrapolated(network, geometry) if on_cpu else chunk_peak(network, geometry, LARGEST_CHUNK)
    keys, (small, large) = _most_keys(context_length), _LATE
    by_small, by_large = (_growth(network, geometry, tokens, keys) for tokens in _LATE)
    pair_bytes = max(0.0, (by_large - by_small) / (large - small))
    key_bytes = max(0.0, by_small - pair_bytes * small, by_large - pair_bytes * large)
    mx.clear_cache()
    return Peaks(chunk, key_bytes, pair_bytes)


def _growth(network: Any, geometry: Geometry, tokens: int, keys: int) -> float:
    """Bytes that each further key adds to the peak of a chunk of so many tokens."""
    near = min(chunk_peak(network, geometry, tokens, keys // 2) for _ in range(_TIMES))
    far = max(chunk_peak(network, geometry, tokens, keys) for _ in range(_TIMES))
    return max(0.0, (far - near) / (keys - keys // 2))


def _extrapolated(network: Any, geometry: Geometry) -> int:
    """The largest chunk by two small ones, behind a whole window, until which scores of sliding layers grow; and masks
    of these layers, which are as wide as the chunk."""
    behind = (geometry.sliding.window or 0) if geometry.sliding else 0
    masks = _MASK_BYTES * LARGEST_CHUNK * (behind + LARGEST_CHUNK) if behind else 0
    small, large = _ON_CPU
    first, second = (chunk_peak(network, geometry, tokens, behind) for tokens in _ON_CPU)
    by_token = max(0.0, (second - first) / (large - small))
    return int(second + by_token * (LARGEST_CHUNK - large)) + masks


def dequantized_bytes(geometry: Geometry, context_length: int) -> int:
    """One layer's K and V in the compute dtype."""
    full = geometry.full
    return context_length * full.kv_heads * (full.k_dim + full.v_dim) * int(geometry.dtype.size)


def chunk_peak(network: Any, geometry: Geometry, tokens: int, behind: int = 0) -> int:
    """The peak of one chunk behind so many tokens, over what was in memory before and the KV of all. Engine thread."""
    mx.clear_cache()
    before = int(mx.get_active_memory())
    caches = _filled(geometry, behind)
    mx.clear_cache()
    mx.reset_peak_memory()
    network(mx.zeros((1, tokens), dtype=mx.uint32), cache=caches)
    mx.eval([cache.state for cache in caches])
    kept = sum(int(cache.buffers.nbytes) for cache in caches)
    return max(0, int(mx.get_peak_memory()) - before - kept)


def _filled(geometry: Geometry, tokens: int) -> Caches:
    """Caches of so many tokens of nothing."""
    caches = geometry.new_caches()
    for layer, cache in enumerate(caches if tokens else ()):
        group = geometry.full if layer in geometry.full.layers else geometry.sliding
        assert group is not None
        k, v = (mx.zeros((1, group.kv_heads, tokens, dim), geometry.dtype) for dim in (group.k_dim, group.v_dim))
        cache.update_and_fetch(k, v)
        mx.eval(cache.state)
    return caches


def _most_keys(context_length: int) -> int:
    """Positions that a model does not have are not asked for."""
    most = _MOST_KEYS // 2 if mx.default_device().type == mx.DeviceType.cpu else _MOST_KEYS
    return max(2, min(most, context_length // 2))


def _key(fingerprint: str, context_length: int) -> str:
    here = f"{mx.device_info()['device_name']}; mlx {importlib.metadata.version('mlx')}"
    return f"{here}; {fingerprint}; {_most_keys(context_length)} keys"
