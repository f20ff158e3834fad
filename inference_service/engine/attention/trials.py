"""Which ways to attend are right on this backend, and what is reported of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import mlx.core as mx

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.self_test import Attend
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.pausing import let_others_run
from inference_service.engine.quantization import KVFormat, Quantized, width_of


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

    @classmethod
    def all_of(cls, geometry: Geometry) -> list[Self]:
        """Those of all layer groups."""
        return [cls.of(geometry, group) for group in geometry.groups]

    @classmethod
    def seen(cls, queries: mx.array, keys: Quantized, values: Quantized, by: KVFormat) -> Self:
        """Those of queries [rows, heads, n, …] over packed K and V."""
        widths = width_of(keys, by.k), width_of(values, by.v)
        return cls(queries.shape[1], keys.weights.shape[1], *widths, by, keys.scales.dtype)


def errors(
    ways: Mapping[str, Attend], error_of: Callable[[Attend, Geometry], float], geometry: Geometry
) -> tuple[dict[str, float], dict[str, Exception]]:
    """The error of each way that is right, and what is wrong with the others."""
    found: dict[str, float] = {}
    failures: dict[str, Exception] = {}
    for name, way in ways.items():
        try:
            found[name] = error_of(way, geometry)
        except (RuntimeError, ValueError, FailedPrecondition) as failure:
            failures[name] = failure
        let_others_run()
    return found, failures


def told(failures: Mapping[str, Exception]) -> list[str]:
    """What is wrong with which, a line each."""
    return [f"{path}: {failure}" for path, failure in failures.items()]
