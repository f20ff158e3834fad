"""The attention backend: the one place where models meet quantized caches.

mlx-lm's models call `scaled_dot_product_attention`, a name in their own module; `AttentionBackend.install` replaces it
there.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, get_args

import mlx.core as mx
import mlx.nn as nn

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.paths import (
    DEQUANTIZE_FUSED,
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
    Attend,
    arrays_error,
    decode_error,
    encoding_error,
    over_caches,
    prefill_error,
)
from inference_service.engine.attention.speed import PathChoice, PathSpeeds
from inference_service.engine.caches import (
    BatchQuantizedKVCache,
    BatchSlidingQuantizedKVCache,
    QuantizedKVCache,
    SlidingQuantizedKVCache,
)
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.mlx_lm_adapter import ATTENTION_NAME
from inference_service.engine.quantization import KVFormat, Quantized, width_of

QuantizedCache = QuantizedKVCache | SlidingQuantizedKVCache | BatchQuantizedKVCache | BatchSlidingQuantizedKVCache


ARRAYS = "arrays"
"""The path of layers that compute attention by themselves: they see K and V dequantized."""


@dataclass(frozen=True)
class PathReport:
    """What the self-test found for one phase, or for one of the paths that a phase takes.

    `relative_error` is the largest difference over the largest output. `note` says where the path is taken, what was
    measured there, and which paths are not taken because they fail.
    """

    phase: str
    path: str
    relative_error: float
    note: str = ""


class Heads(NamedTuple):
    """What a decode path depends on: a layer's heads, their widths, and how its KV is kept."""

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    format: KVFormat
    dtype: mx.Dtype

    @classmethod
    def of(cls, geometry: Geometry, group: LayerGroup) -> Self:
        """Those of a layer group."""
        return cls(geometry.heads, group.kv_heads, group.k_dim, group.v_dim, geometry.format, geometry.dtype)


_EVERYWHERE = PathChoice([DEQUANTIZE_FUSED])
"""Until a self-test has chosen: what every backend has."""


class AttentionBackend:
    """Attention over the caches of all loaded models: those of one architecture share a module, and so a backend.

    `calls` counts how often models came through it, `heads` is how many heads the last one had. Engine thread only.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.heads = 0
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
        return over_caches(self._path(queries, keys, values, cache))(queries, keys, values, cache, scale, mask, sinks)

    def _path(self, queries: mx.array, keys: Quantized, values: Quantized, cache: QuantizedCache) -> Path:
        if queries.shape[2] == 1:
            choice = self._choices.get(_heads(queries, keys, values, cache), _EVERYWHERE)
            return ONE_QUERY[choice.at(queries.shape[0], keys.tokens)]
        if few(queries.shape[2]) and _heads(queries, keys, values, cache) in self._few_packed:
            return MANY_QUERIES[FLASH_PREFILL]
        if isinstance(cache, SlidingQuantizedKVCache) and queries.shape[2] > cache.window:
            return partial(in_pieces, cache.window)
        return MANY_QUERIES[DEQUANTIZE_FUSED]

    def choice(self, geometry: Geometry) -> PathChoice:
        """What the self-test chose for the full-attention layers of such a geometry."""
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
        errors, failures = _errors(MANY_QUERIES, many_queries(), prefill_error, geometry)
        if DEQUANTIZE_FUSED in failures:
            raise failures[DEQUANTIZE_FUSED]
        if FLASH_PREFILL in errors:
            self._few_packed.update(_all_heads(geometry))
        notes = {DEQUANTIZE_FUSED: "; ".join(_told(failures)), FLASH_PREFILL: "a few queries"}
        return [PathReport("prefill", path, error, notes[path]) for path, error in errors.items()]

    def _tested(self, geometry: Geometry, speeds: PathSpeeds | None) -> list[PathReport]:
        encoding_error(geometry)
        if geometry.shows_arrays:
            error = arrays_error(geometry)
            return [PathReport(phase, ARRAYS, error, "the model's own attention") for phase in ("prefill", "decode")]
        prefill = self._tested_prefill(geometry)
        errors, failures = _errors(ONE_QUERY, candidates(), decode_error, geometry)
        failed = _told(failures)
        if not errors:
            raise FailedPrecondition("; ".join(failed))
        right = list(errors)
        choice = PathChoice(right, speeds.of(geometry, right) if speeds and len(right) > 1 else None)
        self._choices.update(dict.fromkeys(_all_heads(geometry), choice))
        report = partial(PathReport, "decode")
        return [
            *prefill,
            *(
                report(path, errors[path], "; ".join(filter(None, [choice.reason(path), *failed])))
                for path in choice.taken
            ),
        ]


def _errors(
    ways: Mapping[str, Path], names: Sequence[str], error_of: Callable[[Attend, Geometry], float], geometry: Geometry
) -> tuple[dict[str, float], dict[str, Exception]]:
    """The error of each way that is right, and what is wrong with the others."""
    errors: dict[str, float] = {}
    failures: dict[str, Exception] = {}
    for name in names:
        try:
            errors[name] = error_of(over_caches(ways[name]), geometry)
        except (RuntimeError, ValueError, FailedPrecondition) as failure:
            failures[name] = failure
    return errors, failures


def _told(failures: Mapping[str, Exception]) -> list[str]:
    return [f"{path}: {failure}" for path, failure in failures.items()]


def _all_heads(geometry: Geometry) -> list[Heads]:
    return [Heads.of(geometry, group) for group in geometry.groups]


class _Dispatch:
    """Stands in for a model module's `scaled_dot_product_attention`; other caches than ours go the old way."""

    def __init__(self, backend: AttentionBackend, fallback: Any) -> None:
        self.backend = backend
        self.fallback = fallback

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        if not isinstance(cache, get_args(QuantizedCache)):
            return self.fallback(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        self.backend.calls += 1
        self.backend.heads = queries.shape[1]
        out = self.backend.attend(queries, keys, values, cache, scale, mask, sinks)
        return out if cache.value_width == out.shape[3] else out[..., : cache.value_width]


def _heads(queries: mx.array, keys: Quantized, values: Quantized, by: QuantizedCache) -> Heads:
    format = by.codec.format
    heads, kv_heads = queries.shape[1], keys.weights.shape[1]
    return Heads(heads, kv_heads, width_of(keys, format.k), width_of(values, format.v), format, keys.scales.dtype)
