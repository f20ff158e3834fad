"""Which way computes products of several rows: what is right at each load, what is fast measured once and kept on disk.

Both are found with the network's own layers, once its weights are there.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from inference_service.engine.attention import PathReport
from inference_service.engine.device import device_and_version
from inference_service.engine.products import (
    GIVEN,
    MEASURED,
    WAYS,
    Product,
    ProductChoice,
    Shape,
    as_given,
    install,
    quantized_layers,
    ways,
)
from inference_service.json_cache import JsonCache

log = logging.getLogger(__name__)

_MOST_ERROR: Final = 0.02
"""Of the largest output. Rounding in 16 bits is below 0.01; a row in another's place, or a group of weights that is
missing, is 0.1 and more."""
_LEAST_GAIN: Final = 0.1
"""Of the time as given."""
_BYTES: Final = 256 << 20
"""Weights that are read in one measurement, where a model has them: more than a GPU's cache holds."""
_FEWEST, _MOST = 2, 32
"""Products in one measurement."""

Errors = Mapping[int, Mapping[str, float]]
"""Of the ways that are right, by rows: the largest difference to the product as given, of its largest output."""
Figures = Mapping[int, Mapping[str, float]]
"""Seconds of a product, by rows and way."""
Measure = Callable[[Shape, Sequence[Any], Errors], Figures]


class ProductSpeeds:
    """Figures by device, version of MLX and shape, remembered in one JSON file. Engine thread only.

    What cannot be read from the file is measured again; a file that cannot be written is not missed.
    """

    def __init__(self, memory: Path, measure: Measure | None = None) -> None:
        self._memory = JsonCache(memory)
        self._measure = measure or measured

    def of(self, shape: Shape, layers: Sequence[Any], right: Errors) -> Figures:
        """Figures of the ways that are right, from memory where they are there; else it takes a tenth of a second."""
        key = _key(shape)
        known = self._memory.get(key)
        try:
            return {rows: {way: float(known[str(rows)][way]) for way in right[rows]} for rows in right}
        except (KeyError, TypeError, ValueError):
            figures = self._measure(shape, layers, right)
        self._memory.put(key, {str(rows): dict(seconds) for rows, seconds in figures.items()})
        return figures


def choose(model: nn.Module, dtype: mx.Dtype, speeds: ProductSpeeds) -> list[PathReport]:
    """Have each quantized layer of a model compute a decode step's rows by the way that is the fastest of the right.

    `dtype` is that of activations. Says which ways are taken, and where; nothing where all is computed as given.
    """
    taken: dict[str, tuple[list[float], list[str]]] = {}
    for shape, layers in quantized_layers(model, dtype).items():
        right = right_ways(shape, layers[0])
        figures = speeds.of(shape, layers, right) if right else {}
        choice = {rows: way for rows, seconds in figures.items() if (way := fastest(seconds)) != GIVEN}
        install(layers, ProductChoice(choice))
        for way in dict.fromkeys(choice.values()):
            errors, notes = taken.setdefault(way, ([], []))
            those = [rows for rows, chosen in choice.items() if chosen == way]
            errors += [right[rows][way] for rows in those]
            notes.append(f"{shape.inputs} to {shape.outputs} {_gain(figures, way, those)}")
    return [PathReport("products", way, max(errors), "; ".join(notes)) for way, (errors, notes) in taken.items()]


def fastest(seconds: Mapping[str, float]) -> str:
    """The fastest way; as given where another gains little."""
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] <= (1 - _LEAST_GAIN) * seconds[GIVEN] else GIVEN


def right_ways(shape: Shape, layer: Any) -> dict[int, dict[str, float]]:
    """Compare the ways with the product as given; without the rows for which no other is right.

    Ways that are wrong or fail are in the log.
    """
    product = as_given(layer)
    found: dict[int, dict[str, float]] = {}
    for rows in MEASURED:
        x = _random(shape, rows, rows)
        errors: dict[str, float] = {}
        for way in ways(rows):
            try:
                errors[way] = _error(WAYS[way](product, x), product(x))
            except (RuntimeError, ValueError) as failure:
                log.warning("products of %d rows, %d to %d, %s: %s", rows, shape.inputs, shape.outputs, way, failure)
        if GIVEN in errors and len(errors) > 1:
            found[rows] = errors
    return found


def _error(found: mx.array, wanted: mx.array) -> float:
    """The largest difference, of the largest output. Raises ValueError where it is not rounding."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ValueError(f"{found.dtype} {found.shape} for {wanted.dtype} {wanted.shape}")
    found, wanted = found.astype(mx.float32), wanted.astype(mx.float32)
    difference, largest = (float(mx.abs(each).max()) for each in (found - wanted, wanted))
    if not difference <= _MOST_ERROR * largest:  # so that NaN is no rounding
        raise ValueError(f"differs by {difference:.2g} of {largest:.2g}")
    return difference / largest if largest else 0.0


def measured(shape: Shape, layers: Sequence[Any], right: Errors) -> Figures:
    """Measure products of these rows, each by these ways, over as many of the layers as matter."""
    count = max(_FEWEST, min(_MOST, _BYTES // layers[0].weight.nbytes))
    products = [as_given(layer) for layer in islice(cycle(layers), count)]
    figures: dict[int, dict[str, float]] = {}
    for rows in right:
        inputs = [_random(shape, rows, seed) for seed in range(count)]
        mx.eval(inputs)
        figures[rows] = {way: _seconds(way, products, inputs) / count for way in right[rows]}
    mx.clear_cache()
    return figures


def _seconds(way: str, products: Sequence[Product], inputs: Sequence[mx.array]) -> float:
    """The shortest of a few passes over the products; the first, which compiles kernels, does not count."""
    times: list[float] = []
    mx.eval(_one_by_one(way, products, inputs))
    while len(times) < 5 and sum(times) < 0.02:
        last = _one_by_one(way, products, inputs)
        started = time.perf_counter()
        mx.eval(last)
        times.append(time.perf_counter() - started)
    return min(times)


def _one_by_one(way: str, products: Sequence[Product], inputs: Sequence[mx.array]) -> mx.array:
    """Products of which each waits for the one before, as in a step: else a GPU computes several at once."""
    last = WAYS[way](products[0], inputs[0])
    for product, x in zip(products[1:], inputs[1:], strict=True):
        last = WAYS[way](product, x + last[..., :1])
    return last


def _random(shape: Shape, rows: int, seed: int) -> mx.array:
    """Rows as a decode step has them."""
    return mx.random.normal((rows, 1, shape.inputs), dtype=shape.dtype, key=mx.random.key(seed))


def _gain(figures: Figures, way: str, those: Sequence[int]) -> str:
    """Where a way is taken, and what was measured with the most rows."""
    seconds = figures[those[-1]]
    figure = f"{1e6 * seconds[way]:.0f} µs, given {1e6 * seconds[GIVEN]:.0f} µs"
    return f"by {', '.join(map(str, those))} rows ({figure})"


def _key(shape: Shape) -> str:
    quantized = f"{shape.mode}, {shape.bits} bits by {shape.group_size}"
    return f"{device_and_version()}; {shape.inputs} to {shape.outputs}; {quantized}; {shape.dtype}"
