"""Which path computes one query per row, by the number of rows and their length: measured once, and cached on disk."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from inference_service.engine.attention.latents import ABSORBED
from inference_service.engine.attention.paths import ONE_QUERY
from inference_service.engine.attention.self_test import over_caches, over_latents
from inference_service.engine.caches import QuantizedKVCache
from inference_service.engine.caches.buffers import STEP
from inference_service.engine.codec import KVCodec
from inference_service.engine.device import device_and_version, on_cpu
from inference_service.engine.geometry import Geometry
from inference_service.engine.pausing import let_others_run
from inference_service.engine.quantization import Quantized, quantize
from inference_service.json_cache import JsonCache


class Shape(NamedTuple):
    """A decode step: rows of the batch, and tokens of each."""

    rows: int
    tokens: int


MEASURED = (Shape(1, 1024), Shape(1, 16384), Shape(8, 1024), Shape(8, 8192))
"""What is measured stands for all that is like it: one row and a batch, short and long."""

_BATCH = 3
_LONG = 4096


def like(rows: int, tokens: int) -> Shape:
    """The measured shape that stands for this one."""
    one, batch = MEASURED[:2], MEASURED[2:]
    return (batch if rows >= _BATCH else one)[tokens >= _LONG]


Figures = Mapping[Shape, Mapping[str, float]]
"""Seconds of one layer's attention, by shape and path."""


class PathChoice:
    """The path for each shape: the fastest where speed was measured, else the first that is right."""

    def __init__(self, right: Sequence[str], figures: Figures | None = None) -> None:
        self._default = right[0]
        self._figures = figures or {}
        self._fastest = {shape: min(right, key=seconds.__getitem__) for shape, seconds in self._figures.items()}

    def at(self, rows: int, tokens: int) -> str:
        """The path for so many rows of so many tokens."""
        return self._fastest.get(like(rows, tokens), self._default)

    @property
    def taken(self) -> list[str]:
        """The paths that are taken somewhere, in the order of the shapes."""
        return list(dict.fromkeys([self.at(*shape) for shape in MEASURED]))

    def reason(self, path: str) -> str:
        """Where a path is taken and what was measured there; empty where nothing was."""
        return "; ".join(
            f"{shape.rows} x {shape.tokens} tokens: "
            + ", ".join(f"{name} {1e6 * each:.0f} µs" for name, each in sorted(seconds.items(), key=lambda x: x[1]))
            for shape, seconds in self._figures.items()
            if self._fastest[shape] == path
        )


Measure = Callable[[Geometry, Sequence[str]], Figures]


class PathSpeeds:
    """Figures by device, version of MLX and geometry, remembered in one JSON file. Engine thread only.

    What cannot be read from the file is measured again; a file that cannot be written is not missed.
    """

    def __init__(self, memory: Path, measure: Measure | None = None) -> None:
        self._memory = JsonCache(memory)
        self._measure = measure or measured

    def of(self, geometry: Geometry, paths: Sequence[str]) -> Figures:
        """Figures of these paths, from memory where they are there. Takes seconds where they are not."""
        key = _key(geometry, paths)
        known = self._memory.get(key)
        try:
            return {shape: {path: float(known[_name(shape)][path]) for path in paths} for shape in MEASURED}
        except (KeyError, TypeError, ValueError):
            figures = self._measure(geometry, paths)
        self._memory.put(key, {_name(shape): dict(seconds) for shape, seconds in figures.items()})
        return figures


def measured(geometry: Geometry, paths: Sequence[str]) -> Figures:
    """Measure one layer with full attention: each shape, each path. Needs about 1 GiB for a geometry of 8B models."""
    figures: dict[Shape, dict[str, float]] = {}
    for shape in MEASURED:
        layers = 1 if on_cpu() else 4
        inputs = [_random_layer(geometry, shape, seed) for seed in range(layers)]
        mask = None
        if shape.rows > 1:  # as in a batch of unequal rows
            padding = mx.arange(shape.rows)[:, None, None, None] * (shape.tokens // (2 * shape.rows))
            mask = padding <= mx.arange(shape.tokens)
        figures[shape] = {path: _seconds(path, inputs, geometry, mask) / layers for path in paths}
        del inputs
        let_others_run()
    mx.clear_cache()
    return figures


Layer = tuple[mx.array, Quantized, Quantized]


def _random_layer(geometry: Geometry, shape: Shape, seed: int) -> Layer:
    """Queries, and views of K and V in buffers that are longer, as caches give them."""
    group, dtype = geometry.full, geometry.dtype
    keys = mx.random.split(mx.random.key(seed), 3)

    def random(heads: int, tokens: int, width: int, key: mx.array) -> mx.array:
        return mx.random.normal((shape.rows, heads, tokens, width), dtype=dtype, key=key)

    sides = []
    for width, key, by in ((group.k_dim, keys[1], geometry.format.k), (group.v_dim, keys[2], geometry.format.v)):
        some = quantize(random(group.kv_heads, STEP, width, key), by)
        # The same again and again: what is random takes longer to make than all that is measured.
        whole = some.map(lambda x: mx.tile(x, (1, 1, shape.tokens // STEP + 1, 1)))
        mx.eval(whole)
        sides.append(whole.between(0, shape.tokens))
    queries = random(geometry.heads, 1, group.k_dim + geometry.latents * group.v_dim, keys[0])
    mx.eval(queries)
    return queries, sides[0], sides[1]


def _seconds(path: str, layers: Sequence[Layer], geometry: Geometry, mask: mx.array | None) -> float:
    """The shortest of a few passes over the layers; on a GPU the first, which compiles kernels, does not count."""
    scale, cache = geometry.full.k_dim**-0.5, QuantizedKVCache(KVCodec(geometry.format))
    attend = over_latents(ABSORBED[path]) if geometry.latents else over_caches(ONE_QUERY[path])
    if not on_cpu():
        mx.eval([attend(*layer, cache, scale, mask, None) for layer in layers])
    times: list[float] = []
    while len(times) < 5 and sum(times) < 0.05:
        started = time.perf_counter()
        mx.eval([attend(*layer, cache, scale, mask, None) for layer in layers])
        times.append(time.perf_counter() - started)
    return min(times)


def _key(geometry: Geometry, paths: Sequence[str]) -> str:
    full = geometry.full
    of = "latents" if geometry.latents else full.kv_heads
    shape = f"{geometry.heads} heads, {of} of {full.k_dim} and {full.v_dim}"
    kept = f"{geometry.format} bits by {geometry.format.group_size}, {geometry.dtype}"
    return f"{device_and_version()}; {shape}; {kept}; {' '.join(sorted(paths))}"


def _name(shape: Shape) -> str:
    return f"{shape.rows}x{shape.tokens}"
