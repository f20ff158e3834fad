"""Chooses how products with quantized weights are computed: timed, and compared with those given, once."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from inference_service.engine.attention import PathReport
from inference_service.engine.device import device_and_version, on_cpu, on_metal
from inference_service.engine.lost_device import end_if_lost
from inference_service.engine.pausing import let_others_run
from inference_service.engine.products import (
    CHUNK_ROWS,
    DEQUANTIZED,
    FLATTENED,
    GIVEN,
    PADDED,
    SKINNY,
    STEP_ROWS,
    ProductChoice,
    Shape,
    computed,
    install,
    quantized_layers,
)
from inference_service.json_cache import JsonCache

log = logging.getLogger(__name__)

_MOST_ERROR: Final = 0.02
"""Share of the largest output. Rounding in 16 bits is below 0.01, a swapped row 0.1 or more."""
_LEAST_GAIN: Final = 0.1
_BYTES: Final = 256 << 20
"""More than a GPU's cache."""
_FEWEST, _MOST = 2, 32
_MOST_SKINNY: Final = 128
"""Up to so many rows about as fast as dequantized weights (H100)."""
_LONG: Final = 0.5
"""Seconds above which figures also stand for more rows."""

STEP, CHUNK = "step", "chunk"


class Case(NamedTuple):
    kind: str
    rows: int

    def ways(self, shape: Shape) -> list[str]:
        """Beside the skinny kernel MLX's are far slower, and take a minute to compile."""
        if self.kind == CHUNK:
            return [GIVEN, DEQUANTIZED]
        if shape.skinny:
            return [GIVEN, SKINNY]
        return [GIVEN, FLATTENED] if self.rows >= 8 else [GIVEN, FLATTENED, PADDED]

    def __str__(self) -> str:
        return f"{self.kind} {self.rows}"


def cases(shape: Shape) -> list[Case]:
    """On a GPU only steps: MLX's kernels for more than 32 packed rows take a minute to compile, and were never much
    faster than dequantized weights (H100).
    """
    if on_cpu():
        return [Case(CHUNK, rows) for rows in CHUNK_ROWS]
    return [] if shape.experts else [Case(STEP, rows) for rows in STEP_ROWS]


def _chunk_on_gpu(shape: Shape) -> Case:
    """Return the fewest rows that are dequantized without the skinny kernel."""
    return Case(CHUNK, CHUNK_ROWS[0] if shape.experts else STEP_ROWS[-1] + 1)


Figures = Mapping[str, Mapping[str, float]]
Measure = Callable[[Shape, Sequence[Any], Sequence[Case]], Figures]


class ProductSpeeds:
    """Figures by device, MLX and shape, in one JSON file. Engine thread only."""

    def __init__(self, memory: Path, measure: Measure | None = None) -> None:
        self._memory = JsonCache(memory)
        self._measure = measure or measured

    def of(self, shape: Shape, layers: Sequence[Any], wanted: Sequence[Case]) -> Figures:
        """Return figures, measured if they are not remembered."""
        key = _key(shape)
        known = self._memory.get(key)
        try:
            return {str(case): {way: float(known[str(case)][way]) for way in case.ways(shape)} for case in wanted}
        except (KeyError, TypeError, ValueError):
            figures = self._measure(shape, layers, wanted)
        self._memory.put(key, {case: dict(seconds) for case, seconds in figures.items()})
        return figures


def careful(model: nn.Module, dtype: mx.Dtype) -> None:
    """Dequantize for two rows and more, without kernels that compile for a minute; on a CPU for 16 and more."""
    if not on_metal():
        ways = {CHUNK_ROWS[0] if on_cpu() else _FEWEST: DEQUANTIZED}
        for layers in quantized_layers(model, dtype).values():
            install(layers, ProductChoice(ways, ways))


def choices(model: nn.Module, dtype: mx.Dtype) -> dict[str, list[Any]]:
    found = {_key(shape): layers[0] for shape, layers in quantized_layers(model, dtype).items()}
    chosen = {key: getattr(layer, "products", None) for key, layer in found.items()}
    return {key: [choice.steps, choice.chunks] for key, choice in chosen.items() if choice is not None}


def take(model: nn.Module, dtype: mx.Dtype, known: Mapping[str, Any]) -> None:
    """Compute by `choices`. Raises AttributeError, TypeError, ValueError."""
    for shape, layers in quantized_layers(model, dtype).items():
        if ways := known.get(_key(shape)):
            steps, chunks = ({int(rows): str(way) for rows, way in of.items()} for of in ways)
            install(layers, ProductChoice(steps, chunks))


def choose(model: nn.Module, dtype: mx.Dtype, speeds: ProductSpeeds) -> list[PathReport]:
    """Make each layer compute by the fastest way that is right. Return a report for each way."""
    taken: dict[str, tuple[list[float], list[str]]] = {}
    for shape, layers in quantized_layers(model, dtype).items():
        figures = speeds.of(shape, layers, cases(shape))
        wanted = {case: fastest(figures[str(case)]) for case in cases(shape)}
        if not on_cpu():
            wanted[_chunk_on_gpu(shape)] = DEQUANTIZED
        chosen, errors = _right(shape, layers[0], wanted)
        steps, chunks = ({c.rows: way for c, way in chosen.items() if c.kind == kind} for kind in (STEP, CHUNK))
        if on_cpu():
            steps = chunks
        else:  # Few rows of a chunk are computed like a step's, many of a step like a chunk's.
            chunks = {rows: way for rows, way in steps.items() if way == SKINNY} | chunks
            if DEQUANTIZED in chunks.values():
                if SKINNY in steps.values():
                    chunks = {rows if way == SKINNY else _MOST_SKINNY + 1: way for rows, way in chunks.items()}
                steps[_MOST_SKINNY + 1] = DEQUANTIZED
        install(layers, ProductChoice(steps, chunks))
        for way, error in errors.items():
            worst, notes = taken.setdefault(way, ([], []))
            worst.append(error)
            notes.append(f"{shape} {_gain(figures, way, [case for case, each in chosen.items() if each == way])}")
    return [PathReport("products", way, max(worst), "; ".join(notes)) for way, (worst, notes) in taken.items()]


def fastest(seconds: Mapping[str, float]) -> str:
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] <= (1 - _LEAST_GAIN) * seconds[GIVEN] else GIVEN


def _right(shape: Shape, layer: Any, wanted: Mapping[Case, str]) -> tuple[dict[Case, str], dict[str, float]]:
    chosen: dict[Case, str] = {}
    errors: dict[str, float] = {}
    for case, way in wanted.items():
        chosen[case] = way
        if way == GIVEN or (case.kind == CHUNK and way in errors):
            continue
        try:
            x = _inputs(shape, case if case.kind == STEP else Case(CHUNK, 1), case.rows)
            errors[way] = max(errors.get(way, 0.0), _error(computed(layer, way, *x), computed(layer, GIVEN, *x)))
            let_others_run()
        except (RuntimeError, ValueError) as failure:
            end_if_lost(failure)
            chosen[case] = GIVEN
            log.warning("products of a %s, %s, %s: %s", case, shape, way, failure)
    return chosen, {way: error for way, error in errors.items() if way in chosen.values()}


def _error(found: mx.array, wanted: mx.array) -> float:
    """Raises ValueError for more than rounding."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ValueError(f"{found.dtype} {found.shape} for {wanted.dtype} {wanted.shape}")
    found, wanted = found.astype(mx.float32), wanted.astype(mx.float32)
    difference, largest = (float(mx.abs(each).max()) for each in (found - wanted, wanted))
    if not difference <= _MOST_ERROR * largest:  # not `>`, so that NaN fails
        raise ValueError(f"differs by {difference:.2g} of {largest:.2g}")
    return difference / largest if largest else 0.0


def measured(shape: Shape, layers: Sequence[Any], wanted: Sequence[Case]) -> Figures:
    """A way that fails has infinite seconds."""
    count = 1 if on_cpu() else max(_FEWEST, min(_MOST, _BYTES // layers[0].weight.nbytes))
    those = list(islice(cycle(layers), count))
    figures: dict[str, dict[str, float]] = {}
    before: tuple[str, dict[str, float]] | None = None
    for case in wanted:
        if before is not None and before[0] == case.kind and max(before[1].values()) > _LONG:
            figures[str(case)] = before[1]
            continue
        inputs = [_inputs(shape, case, seed) for seed in range(count)]
        mx.eval(inputs)
        seconds = {way: _seconds(way, those, inputs, warm_up=not on_cpu()) / count for way in case.ways(shape)}
        figures[str(case)] = seconds
        before = case.kind, seconds
        let_others_run()
    mx.clear_cache()
    return figures


def _seconds(way: str, layers: Sequence[Any], inputs: Sequence[tuple[mx.array, ...]], *, warm_up: bool) -> float:
    times: list[float] = []
    try:
        if warm_up:
            mx.eval(_one_by_one(way, layers, inputs))
        while len(times) < 5 and sum(times) < 0.02:
            last = _one_by_one(way, layers, inputs)
            started = time.perf_counter()
            mx.eval(last)
            times.append(time.perf_counter() - started)
    except (RuntimeError, ValueError) as failure:
        end_if_lost(failure)
        log.warning("a product of %s, %s: %s", inputs[0][0].shape, way, failure)
        return float("inf")
    return min(times)


def _one_by_one(way: str, layers: Sequence[Any], inputs: Sequence[tuple[mx.array, ...]]) -> mx.array:
    last = computed(layers[0], way, *inputs[0])
    for layer, (x, *indices) in zip(layers[1:], inputs[1:], strict=True):
        last = computed(layer, way, x + last[..., :1], *indices)
    return last


def _inputs(shape: Shape, case: Case, seed: int) -> tuple[mx.array, ...]:
    form = (case.rows, 1) if case.kind == STEP else (1, case.rows)
    if shape.experts:
        form = (case.rows * shape.experts, 1)
    x = mx.random.normal((*form, shape.inputs), dtype=shape.dtype, key=mx.random.key(seed))
    return (x, mx.repeat(mx.arange(shape.experts, dtype=mx.uint32), case.rows)) if shape.experts else (x,)


def _gain(figures: Figures, way: str, those: Sequence[Case]) -> str:
    where = f"by {those[0].kind}s of {', '.join(f'{case.rows}' for case in those)} rows"
    if not (seconds := figures.get(str(those[-1]))):
        return where
    return f"{where} ({1e6 * seconds[way]:.0f} µs, given {1e6 * seconds[GIVEN]:.0f} µs)"


def _key(shape: Shape) -> str:
    quantized = f"{shape.mode}, {shape.bits} bits by {shape.group_size}"
    return f"{device_and_version()}; {shape}; {quantized}; {shape.dtype}"
