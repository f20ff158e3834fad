"""The attention seam: the one place where models meet Q4 caches.

mlx-lm's models call `scaled_dot_product_attention`, a name in their own module; `AttentionSeam.install` puts the seam
there.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import mlx.core as mx
import mlx.nn as nn

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.choice import PathChoice
from inference_service.engine.attention.paths import DEQUANTIZE_FUSED, ONE_QUERY, candidates, dequantized, fused
from inference_service.engine.attention.self_test import decode_error, prefill_error
from inference_service.engine.attention.speed import PathSpeeds
from inference_service.engine.caches import (
    BatchQuantizedKVCache,
    BatchSlidingQuantizedKVCache,
    Quantized,
    QuantizedKVCache,
    SlidingQuantizedKVCache,
)
from inference_service.engine.geometry import Geometry

Q4Cache = QuantizedKVCache | SlidingQuantizedKVCache | BatchQuantizedKVCache | BatchSlidingQuantizedKVCache

_SEAM_NAME = "scaled_dot_product_attention"


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


class AttentionSeam:
    """Attention over Q4 caches. `calls` counts how often models came through it. Engine thread only."""

    def __init__(self) -> None:
        self.calls = 0
        self.heads = 0
        self.choice = PathChoice([DEQUANTIZE_FUSED])
        """Until the self-test has chosen, what every backend has."""

    def install(self, model: nn.Module) -> None:
        """Put the seam into every module that defines a part of `model`. Raises FailedPrecondition if none takes it."""
        modules = {sys.modules[type(module).__module__] for _, module in model.named_modules()}
        users = [module for module in modules if hasattr(module, _SEAM_NAME)]
        if not users:
            raise FailedPrecondition(
                f"{type(model).__module__} has attention of its own that cannot run over a Q4 cache"
            )
        for module in users:
            original = getattr(module, _SEAM_NAME)
            fallback = original.fallback if isinstance(original, _Dispatch) else original
            setattr(module, _SEAM_NAME, _Dispatch(self, fallback))

    def attend(
        self,
        queries: mx.array,
        keys: Quantized,
        values: Quantized,
        cache: Q4Cache,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Attention of queries [rows, heads, n, k_dim] over what a cache shows; [rows, heads, n, v_dim].

        `mask` is what the cache's `make_mask` gave. Many queries: dequantize this layer, then the fused kernel, so that
        the score matrix never exists. One query: as `choice` says.
        """
        if queries.shape[2] == 1:
            path = ONE_QUERY[self.choice.at(queries.shape[0], keys.tokens)]
            return path(queries, keys, values, cache, scale, mask, sinks)
        if isinstance(cache, SlidingQuantizedKVCache) and queries.shape[2] > cache.window:
            k = mx.dequantize(*keys, group_size=cache.group_size, bits=cache.bits)
            v = mx.dequantize(*values, group_size=cache.group_size, bits=cache.bits)
            return _in_pieces(queries, k, v, cache.window, scale, mask, sinks)
        return dequantized(queries, keys, values, cache, scale, mask, sinks)

    def self_test(self, geometry: Geometry, speeds: PathSpeeds | None = None) -> list[PathReport]:
        """Compare both phases with plain attention on this backend, for this geometry, and choose paths for decode.

        Raises FailedPrecondition where a phase cannot be computed right: a wrong answer is never served. Of the decode
        paths that are right, the fastest is taken where `speeds` are given, else the first.
        """
        prefill = PathReport("prefill", DEQUANTIZE_FUSED, prefill_error(self.attend, geometry))
        errors: dict[str, float] = {}
        failures: dict[str, Exception] = {}
        for path in candidates():
            try:
                errors[path] = decode_error(ONE_QUERY[path], geometry)
            except (RuntimeError, ValueError, FailedPrecondition) as failure:
                failures[path] = failure
        if not errors:
            raise FailedPrecondition("; ".join(f"{path}: {failure}" for path, failure in failures.items()))
        right = list(errors)
        self.choice = PathChoice(right, speeds.of(geometry, right) if speeds and len(right) > 1 else None)
        failed = [f"{path}: {failure}" for path, failure in failures.items()]
        report = partial(PathReport, "decode")
        return [
            prefill,
            *(
                report(path, errors[path], "; ".join(filter(None, [self.choice.reason(path), *failed])))
                for path in self.choice.taken
            ),
        ]


class _Dispatch:
    """Stands in for a model module's `scaled_dot_product_attention`; other caches than ours go the old way."""

    def __init__(self, seam: AttentionSeam, fallback: Any) -> None:
        self.seam = seam
        self.fallback = fallback

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        if not isinstance(cache, get_args(Q4Cache)):
            return self.fallback(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        self.seam.calls += 1
        self.seam.heads = queries.shape[1]
        return self.seam.attend(queries, keys, values, cache, scale, mask, sinks)


def _in_pieces(
    q: mx.array, k: mx.array, v: mx.array, window: int, scale: float, mask: mx.array, sinks: mx.array | None
) -> mx.array:
    """Queries of a sliding layer, at most a window of them at once, each piece over the keys that it can see."""
    n, total = q.shape[2], k.shape[2]
    pieces = []
    for start in range(0, n, window):
        end = min(n, start + window)
        first, last = max(0, total - n + start - window + 1), total - n + end
        piece = mask[start:end, first:last]
        pieces.append(fused(q[:, :, start:end], k[:, :, first:last], v[:, :, first:last], scale, piece, sinks))
    return mx.concatenate(pieces, axis=2)
