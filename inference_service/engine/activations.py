"""How much computing takes at its peak besides weights and KV.

The peak is measured on the model itself, once, and prefill has it. On a GPU the chunks that see the most keys are
computed once, behind KV of zeros: how much a backend holds on to differs by a factor of ten from what is needed, and
extrapolations by as much. A CPU would take minutes for that, but frees memory as it goes, so there a few small chunks
are extrapolated: hidden states grow by a chunk's tokens, one layer's dequantized K and V by the context's keys, and the
scores, since a CPU has no fused attention, by pairs of both. The sum is above the peak where these are not in memory
together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from inference_service.engine.device import device_and_version, on_cpu
from inference_service.engine.geometry import Caches, Geometry
from inference_service.engine.products import dequantized_bytes
from inference_service.engine.scheduling import LARGEST_CHUNK, latest_chunks
from inference_service.json_cache import JsonCache

_EARLY = (64, 128)
"""Tokens of two chunks at the beginning of a context: hidden states grow by the token."""
_LATE = (64, 256)
"""Tokens of two chunks behind many keys; what does not grow by them is put down to the keys alone."""
_TIMES = 2
"""What is freed late by chance must not make the difference of two peaks too small."""
_MASK_BYTES = 3
"""Of a pair, while a sliding layer's mask is made: two comparisons, and both together."""
_KEYS_ON_CPU = 2_048
"""Scores of so many keys are more than a layer's hidden states."""
_KEYS_ON_GPU = 32_768
"""KV of a longer context is not made only to be measured: what is beyond is extrapolated by the key."""
_WHAT = "largest chunks, weights dequantized or not"
"""What is measured, so that what was remembered of something else is measured again."""
_MARGIN, MARGIN_OF_SMALL = 1.1, 1.5
"""Of a measured peak: what comes together otherwise while requests are served; and of one that is extrapolated."""


@dataclass(frozen=True)
class Peaks:
    """On a CPU: bytes of the largest chunk at the beginning of a context, of each key that a chunk sees, and of each
    pair of a chunk's token and a key."""

    chunk_bytes: int
    key_bytes: float
    pair_bytes: float

    def at_worst(self, geometry: Geometry, context_length: int) -> int:
        """Bytes at the worst position of a context."""
        key_bytes = max(self.key_bytes, geometry.layer_bytes_per_token)
        late = ((self.pair_bytes * tokens + key_bytes) * keys for tokens, keys in latest_chunks(context_length))
        return self.chunk_bytes + int(max(late))


Measure = Callable[[Any, Geometry, int], int]


class Activations:
    """Peaks by device, version of MLX and fingerprint, remembered in one JSON file. Engine thread only."""

    def __init__(self, memory: Path, measure: Measure | None = None) -> None:
        self._memory = JsonCache(memory)
        self._measure = measure or measured

    def of(self, fingerprint: str, network: Any, geometry: Geometry, context_length: int) -> int:
        """Bytes that the model takes at its peak, wherever in its context. Measures what is not remembered."""
        known = self.remembered(fingerprint, context_length)
        if known is None:
            known = self._measure(network, geometry, context_length)
            self._memory.put(_key(fingerprint, context_length), known)
        return known

    def remembered(self, fingerprint: str, context_length: int) -> int | None:
        """The same where it needs no measuring; else None. Any thread."""
        known = self._memory.get(_key(fingerprint, context_length))
        return known if isinstance(known, int) else None


def measured(network: Any, geometry: Geometry, context_length: int) -> int:
    """The peak over weights and KV, wherever in the context. Engine thread.

    On a GPU this compiles the kernels of prefill, too, and takes seconds, and KV of the context.
    """
    if on_cpu():
        found = small_chunks(network, geometry, context_length).at_worst(geometry, context_length)
        peak = int(MARGIN_OF_SMALL * found) + dequantized_bytes(network.model, geometry.dtype)
    else:
        peak = _by_worst_chunks(network, geometry, context_length)
    mx.clear_cache()
    return peak


def _by_worst_chunks(network: Any, geometry: Geometry, context_length: int) -> int:
    keys = min(context_length, _KEYS_ON_GPU)
    chunks = latest_chunks(keys)
    chunk_peak(network, geometry, *_behind(chunks[0]))  # Kernels are compiled, and memory is held on to, from here on.
    peaks = [chunk_peak(network, geometry, *_behind(chunk)) for chunk in chunks]
    beyond = 0.0
    if context_length > keys:
        tokens, most = chunks[-1]
        nearer = chunk_peak(network, geometry, *_behind((tokens, most // 2)))
        by_key = max(geometry.layer_bytes_per_token, (peaks[-1] - nearer) / (most - most // 2))
        beyond = peaks[-1] + by_key * (context_length - keys)
    return int(_MARGIN * max(*peaks, beyond))


def _behind(chunk: tuple[int, int]) -> tuple[int, int]:
    """A chunk's tokens, and the keys before them, of its tokens and all the keys that it sees."""
    tokens, keys = chunk
    return tokens, keys - tokens


def small_chunks(network: Any, geometry: Geometry, context_length: int) -> Peaks:
    """The peaks of large chunks by a few small ones, on a CPU. Engine thread.

    What other threads free late can hide most of what a pair takes (measured on a busy host: 5.5 bytes of 17), so it is
    never below the scores of one layer, all of whose heads a CPU computes at once.
    """
    keys, (small, large) = max(2, min(_KEYS_ON_CPU, context_length // 2)), _LATE
    by_small, by_large = (_growth(network, geometry, tokens, keys) for tokens in _LATE)
    scores = geometry.heads * geometry.dtype.size if geometry.full.layers else 0
    pair_bytes = max(float(scores), (by_large - by_small) / (large - small))
    key_bytes = max(0.0, by_small - pair_bytes * small, by_large - pair_bytes * large)
    return Peaks(_extrapolated(network, geometry), key_bytes, pair_bytes)


def _growth(network: Any, geometry: Geometry, tokens: int, keys: int) -> float:
    """Bytes that each further key adds to the peak of a chunk of so many tokens."""
    near = min(chunk_peak(network, geometry, tokens, keys // 2) for _ in range(_TIMES))
    far = max(chunk_peak(network, geometry, tokens, keys) for _ in range(_TIMES))
    return max(0.0, (far - near) / (keys - keys // 2))


def _extrapolated(network: Any, geometry: Geometry) -> int:
    """The largest chunk by two small ones, behind a whole window, until which scores of sliding layers grow; and masks
    of these layers, which are as wide as the chunk."""
    behind = geometry.window
    masks = _MASK_BYTES * LARGEST_CHUNK * (behind + LARGEST_CHUNK) if behind else 0
    small, large = _EARLY
    first, second = (chunk_peak(network, geometry, tokens, behind) for tokens in _EARLY)
    by_token = max(0.0, (second - first) / (large - small))
    return int(second + by_token * (LARGEST_CHUNK - large)) + masks


def chunk_peak(network: Any, geometry: Geometry, tokens: int, behind: int = 0) -> int:
    """The peak of one chunk behind so many tokens, over what was in memory before and the KV of all. Engine thread."""
    mx.clear_cache()
    before = int(mx.get_active_memory())
    caches = _filled(geometry, behind)
    mx.clear_cache()
    mx.reset_peak_memory()
    network(mx.zeros((1, tokens), dtype=mx.uint32), cache=caches)
    mx.eval([cache.state for cache in caches])
    kept = sum(int(cache.nbytes) for cache in caches)
    return max(0, int(mx.get_peak_memory()) - before - kept)


def _filled(geometry: Geometry, tokens: int) -> Caches:
    """Caches of so many tokens of nothing."""
    caches = geometry.new_caches()
    for group in geometry.groups if tokens else ():
        for layer in group.layers:
            k, v = (mx.zeros((1, group.kv_heads, tokens, dim), geometry.dtype) for dim in (group.k_dim, group.v_dim))
            caches[layer].update_and_fetch(k, v)
            mx.eval(caches[layer].state)
    return caches


def _key(fingerprint: str, context_length: int) -> str:
    return f"{device_and_version()}; {_WHAT}; {fingerprint}; {context_length} tokens"
