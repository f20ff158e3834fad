"""Peak memory of computing besides weights and KV, measured on a GPU: estimates are off by a factor of ten there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from inference_service.engine.computing import LEAST_CHUNK, EstimatedCost
from inference_service.engine.device import device_and_version
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.alone import SequenceCaches, SequenceKVCache, new_caches
from inference_service.engine.scheduling import latest_chunks
from inference_service.json_cache import JsonCache

_KEYS_ON_GPU = 32_768
_WHAT = "largest chunks, weights dequantized or not"
"""Change it with the measurement."""
_MARGIN = 1.1

Measure = Callable[[Any, Geometry, int], int]


class Activations:
    """In one JSON file. Engine thread."""

    def __init__(self, memory: Path, measure: Measure | None = None) -> None:
        self._memory = JsonCache(memory)
        self._measure = measure or measured

    def of(self, fingerprint: str, network: Any, geometry: Geometry, context_length: int) -> int:
        known = self.remembered(fingerprint, context_length)
        if known is None:
            known = self._measure(network, geometry, context_length)
            self._memory.put(_key(fingerprint, context_length), known)
        return known

    def remembered(self, fingerprint: str, context_length: int) -> int | None:
        """Any thread."""
        known = self._memory.get(_key(fingerprint, context_length))
        return known if isinstance(known, int) else None


def measured(network: Any, geometry: Geometry, context_length: int) -> int:
    """Takes seconds, and memory for the context's KV."""
    keys = min(context_length, _KEYS_ON_GPU)
    chunks = latest_chunks(keys)

    def peak(tokens: int, seen: int) -> int:
        return chunk_peak(network, geometry, tokens, seen - tokens)

    peak(*chunks[0])  # Compiles kernels.
    peaks = [peak(*chunk) for chunk in chunks]
    beyond = 0.0
    if context_length > keys:
        tokens, most = chunks[-1]
        by_key = max(geometry.layer_bytes_per_token, (peaks[-1] - peak(tokens, most // 2)) / (most - most // 2))
        beyond = peaks[-1] + by_key * (context_length - keys)
    mx.clear_cache()
    return int(_MARGIN * max(*peaks, beyond))


def with_measured_states(cost: EstimatedCost, network: Any, geometry: Geometry) -> EstimatedCost:
    if not geometry.in_order:
        return cost
    peak = chunk_peak(network, geometry, LEAST_CHUNK)
    mx.clear_cache()
    return replace(cost, token_bytes=max(cost.token_bytes, (peak - cost.fixed_bytes) // LEAST_CHUNK))


def chunk_peak(network: Any, geometry: Geometry, tokens: int, behind: int = 0) -> int:
    """Return the peak of a chunk after so many others, without KV."""
    mx.clear_cache()
    before = int(mx.get_active_memory())
    caches = _filled(geometry, behind)
    mx.clear_cache()
    mx.reset_peak_memory()
    network(mx.zeros((1, tokens), dtype=mx.uint32), cache=caches)
    mx.eval([cache.state for cache in caches])
    kept = sum(int(cache.nbytes) for cache in caches)
    return max(0, int(mx.get_peak_memory()) - before - kept)


def _filled(geometry: Geometry, tokens: int) -> SequenceCaches:
    caches = new_caches(geometry)
    for group in geometry.groups if tokens else ():
        for layer in group.layers:
            k, v = (mx.zeros((1, group.kv_heads, tokens, dim), geometry.dtype) for dim in (group.k_dim, group.v_dim))
            cache = caches[layer]
            assert isinstance(cache, SequenceKVCache)
            cache.update_and_fetch(k, v)
            mx.eval(cache.state)
    return caches


def _key(fingerprint: str, context_length: int) -> str:
    return f"{device_and_version()}; {_WHAT}; {fingerprint}; {context_length} tokens"
