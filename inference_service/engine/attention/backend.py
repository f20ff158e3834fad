"""The attention backend: the one place where models meet quantized caches.

mlx-lm's models call `scaled_dot_product_attention`, a name in their own module; `AttentionBackend.install` replaces it
there.
"""

import sys
from functools import partial
from typing import Any, get_args

import mlx.core as mx
import mlx.nn as nn

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.absorbed import AbsorbedPaths
from inference_service.engine.attention.latents import ABSORBED, LATENT_FLASH, LatentPath
from inference_service.engine.attention.paths import (
    DEQUANTIZE_FUSED,
    FLASH_DECODING,
    FLASH_PREFILL,
    MANY_QUERIES,
    ONE_QUERY,
    Path,
    candidates,
    few,
    in_pieces,
    many_queries,
)
from inference_service.engine.attention.self_test import (
    arrays_error,
    decode_error,
    encoding_error,
    over_caches,
    prefill_error,
)
from inference_service.engine.attention.speed import PathChoice, PathSpeeds
from inference_service.engine.attention.trials import Heads, PathReport, errors, told
from inference_service.engine.caches import (
    BatchQuantizedKVCache,
    BatchSlidingQuantizedKVCache,
    QuantizedKVCache,
    SlidingQuantizedKVCache,
    TracedKVCache,
)
from inference_service.engine.geometry import Geometry
from inference_service.engine.mlx_lm_adapter import ATTENTION_NAME
from inference_service.engine.paged.passes import KVCache, Pieces, over_pieces
from inference_service.engine.quantization import Quantized

QuantizedCache = (
    QuantizedKVCache | SlidingQuantizedKVCache | BatchQuantizedKVCache | BatchSlidingQuantizedKVCache | TracedKVCache
)


ARRAYS = "arrays"
"""The path of layers that compute attention by themselves: they see K and V dequantized."""


_EVERYWHERE = PathChoice([DEQUANTIZE_FUSED])
"""Until a self-test has chosen: what every backend has."""


class AttentionBackend:
    """Attention over the caches of all loaded models: those of one architecture share a module, and so a backend.

    `calls` counts how often models came through it, `heads` is how many heads the last one had, and `latents` whether
    it attended over latents. Engine thread only.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.heads = 0
        self.latents = False
        self._absorbed = AbsorbedPaths()
        self._choices: dict[Heads, PathChoice] = {}
        self._few_packed: set[Heads] = set()
        self._reports: dict[Geometry, list[PathReport]] = {}

    def install(self, model: nn.Module) -> None:
        """Install the backend in every module that defines a part of `model` and attends by mlx-lm's function."""
        modules = {sys.modules[type(module).__module__] for _, module in model.named_modules()}
        for module in (module for module in modules if hasattr(module, ATTENTION_NAME)):
            original = getattr(module, ATTENTION_NAME)
            fallback = original.fallback if isinstance(original, _Dispatch) else original
            setattr(module, ATTENTION_NAME, _Dispatch(self, fallback))

    def attend(
        self,
        queries: mx.array,
        keys: Quantized,
        values: Quantized,
        cache: QuantizedCache,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Attention of queries [rows, heads, n, k_dim] over what a cache shows; [rows, heads, n, v_dim].

        Queries and output have the model's own basis; v_dim is that of packed V, filled up to whole groups. `mask` is
        what the cache's `make_mask` gave. Many queries: dequantize this layer, then the fused kernel, so that the score
        matrix never exists; but a few over packed K and V, where that was proved right. One query: as was chosen for
        such heads.
        """
        if isinstance(cache, TracedKVCache) and cache.seen:
            if mask is not None:
                raise ValueError("a compiled step that writes K and V in place cannot see a mask of the model's own")
            return ONE_QUERY[FLASH_DECODING](queries, keys, values, cache.codec, scale, cache.seen, sinks)
        return over_caches(self._path(queries, keys, values, cache))(queries, keys, values, cache, scale, mask, sinks)

    def note(self, heads: int, *, latents: bool) -> None:
        """Count a layer that attends with so many heads, here or by itself."""
        self.calls += 1
        self.heads, self.latents = heads, latents

    def latent_path(
        self, queries: mx.array, latents: Quantized, rotary: Quantized, cache: QuantizedCache
    ) -> LatentPath | None:
        """How queries [rows, heads, n, …] attend over what a cache shows of latents and rotary keys.

        None where K and V of all heads are to be computed from them: for many queries, and where no path is right.
        """
        self.note(queries.shape[1], latents=True)
        if isinstance(cache, TracedKVCache) and cache.seen:
            return ABSORBED[LATENT_FLASH]
        return self._absorbed.path(Heads.seen(queries, latents, rotary, cache.codec.format), queries, latents)

    def _path(self, queries: mx.array, keys: Quantized, values: Quantized, cache: QuantizedCache) -> Path:
        heads = Heads.seen(queries, keys, values, cache.codec.format)
        if queries.shape[2] == 1:
            choice = self._choices.get(heads, _EVERYWHERE)
            return ONE_QUERY[choice.at(queries.shape[0], keys.tokens)]
        if few(queries.shape[2]) and heads in self._few_packed:
            return MANY_QUERIES[FLASH_PREFILL]
        if isinstance(cache, SlidingQuantizedKVCache) and queries.shape[2] > cache.window:
            return partial(in_pieces, cache.window)
        return MANY_QUERIES[DEQUANTIZE_FUSED]

    def choice(self, geometry: Geometry) -> PathChoice:
        """What the self-test chose for the full-attention layers of such a geometry."""
        if geometry.latents:
            return self._absorbed.choice(geometry)
        return self._choices.get(Heads.of(geometry, geometry.full), _EVERYWHERE)

    def self_test(self, geometry: Geometry, speeds: PathSpeeds | None = None) -> list[PathReport]:
        """Compare both phases with plain attention on this backend, for this geometry, and choose paths for decode.

        Raises FailedPrecondition where a phase cannot be computed right: a wrong answer is never served. Of the decode
        paths that are right, the fastest is taken where `speeds` are given, else the first. A geometry that has passed
        is not tested again: in one process the same kernels give the same answers, and a swap would wait for them.
        """
        if geometry not in self._reports:
            self._reports[geometry] = self._tested(geometry, speeds)
        return self._reports[geometry]

    def _tested_prefill(self, geometry: Geometry) -> list[PathReport]:
        """The fused kernel must be right; another way is not taken where it is not."""
        ways = {name: over_caches(MANY_QUERIES[name]) for name in many_queries()}
        right, failures = errors(ways, prefill_error, geometry)
        if DEQUANTIZE_FUSED in failures:
            raise failures[DEQUANTIZE_FUSED]
        if FLASH_PREFILL in right:
            self._few_packed.update(Heads.all_of(geometry))
        notes = {DEQUANTIZE_FUSED: "; ".join(told(failures)), FLASH_PREFILL: "a few queries"}
        return [PathReport("prefill", path, error, notes[path]) for path, error in right.items()]

    def _tested(self, geometry: Geometry, speeds: PathSpeeds | None) -> list[PathReport]:
        if not geometry.groups:
            return []
        encoding_error(geometry)
        if geometry.shows_arrays:
            error = arrays_error(geometry)
            return [PathReport(phase, ARRAYS, error, "the model's own attention") for phase in ("prefill", "decode")]
        if geometry.latents:
            return self._absorbed.tested(geometry, speeds)
        prefill = self._tested_prefill(geometry)
        ways = {name: over_caches(ONE_QUERY[name]) for name in candidates()}
        right, failures = errors(ways, decode_error, geometry)
        failed = told(failures)
        if not right:
            raise FailedPrecondition("; ".join(failed))
        measured = speeds.of(geometry, list(right)) if speeds and len(right) > 1 and geometry.full_groups else None
        choice = PathChoice(list(right), measured)
        self._choices.update(dict.fromkeys(Heads.all_of(geometry), choice))
        report = partial(PathReport, "decode")
        return [
            *prefill,
            *(
                report(path, right[path], "; ".join(filter(None, [choice.reason(path), *failed])))
                for path in choice.taken
            ),
        ]


class _Dispatch:
    """Stands in for a model module's `scaled_dot_product_attention`; other caches than ours go the old way."""

    def __init__(self, backend: AttentionBackend, fallback: Any) -> None:
        self.backend = backend
        self.fallback = fallback

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        if isinstance(cache, KVCache):
            self.backend.note(queries.shape[1], latents=False)
            if isinstance(keys, Pieces):
                return over_pieces(self.fallback, queries, keys, cache.window, scale, sinks)
        if not isinstance(cache, get_args(QuantizedCache)):
            return self.fallback(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        self.backend.note(queries.shape[1], latents=False)
        out = self.backend.attend(queries, keys, values, cache, scale, mask, sinks)
        return out if cache.value_width == out.shape[3] else out[..., : cache.value_width]
