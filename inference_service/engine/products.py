"""Products with quantized weights: the seam between linear layers and MLX's kernels.

MLX's CUDA backend reads the weights once per row of a step. So a few rows have a kernel (`skinny`), or are flattened,
or padded to 8.

    K to N, 4 bits    rows    given  flattened   skinny    (µs, an H100)
    4096 to 14336        8      240                  55
                        32      869         78       73
    14336 to 4096        8      258        300       54

For a chunk's many rows, and sorted experts', weights are dequantized whole.

    2048 to 8192, 4 bits, rows     16      64     256       (ms, two cores with OpenBLAS)
    given                         236    1004    4146
    dequantized                   122     135     192
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from inference_service.engine import dequantizing, skinny
from inference_service.engine.quantization import Quantization, Quantized, dequantize

GIVEN: Final = "given"
FLATTENED: Final = "flattened"
PADDED: Final = "flattened and padded"
DEQUANTIZED: Final = "dequantized"
SKINNY: Final = "skinny"

STEP_ROWS: Final = (2, 4, 8, 16, 32)
CHUNK_ROWS: Final = (16, 64, 256)
"""For MoE layers, the average rows per expert."""
_MATRIX: Final = 8
"""Rows that MLX treats as a matrix."""

Product = Callable[[mx.array], mx.array]
"""[…, K] to […, N]."""


def flattened(product: Product, x: mx.array) -> mx.array:
    return product(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def padded(product: Product, x: mx.array) -> mx.array:
    rows = x.reshape(-1, x.shape[-1])
    count, width = rows.shape
    repeated = mx.broadcast_to(rows[None], (-(-_MATRIX // count), count, width)).reshape(-1, width)
    return product(repeated)[:count].reshape(*x.shape[:-1], -1)


WAYS: Final[dict[str, Callable[[Product, mx.array], mx.array]]] = {
    GIVEN: lambda product, x: product(x),
    FLATTENED: flattened,
    PADDED: padded,
}


class ProductChoice:
    def __init__(self, steps: Mapping[int, str], chunks: Mapping[int, str]) -> None:
        """By rows, each for all up to the next."""
        self.steps = dict(steps)
        self.chunks = dict(chunks)

    def step(self, rows: int) -> str:
        return _at(self.steps, rows)

    def chunk(self, rows: int) -> str:
        """`rows` are of each expert, if there are any."""
        return _at(self.chunks, rows)

    def of(self, x: mx.array) -> str:
        """A decode step has one token per row."""
        rows = x.size // x.shape[-1]
        return self.step(rows) if x.ndim >= 3 and x.shape[-2] == 1 else self.chunk(rows)


def _at(ways: Mapping[int, str], rows: int) -> str:
    return ways.get(max((each for each in ways if each <= rows), default=0), GIVEN)


class _Linear(nn.QuantizedLinear):  # type: ignore[misc]
    products: ProductChoice

    def __call__(self, x: mx.array) -> mx.array:
        return computed(self, self.products.of(x), x)


class _Embedding(nn.QuantizedEmbedding):  # type: ignore[misc]
    products: ProductChoice

    def as_linear(self, x: mx.array) -> mx.array:
        return computed(self, self.products.of(x), x)


class _Experts(QuantizedSwitchLinear):  # type: ignore[misc]
    products: ProductChoice

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        if not sorted_indices:
            return super().__call__(x, indices)  # type: ignore[no-any-return]
        return computed(self, self.products.chunk(indices.size // self.num_experts), x, indices)


_OURS: Final = {nn.QuantizedLinear: _Linear, nn.QuantizedEmbedding: _Embedding, QuantizedSwitchLinear: _Experts}
"""Exact types: a subclass may compute something else."""


def computed(layer: Any, way: str, x: mx.array, indices: mx.array | None = None) -> mx.array:
    """For experts, x is [rows, 1, K] and `indices` [rows] sorted."""
    if way == SKINNY:
        return _skinny(layer, x)
    if way == DEQUANTIZED:
        return _dequantized(layer, x, indices)
    if indices is not None:
        out: mx.array = QuantizedSwitchLinear.__call__(layer, x, indices, sorted_indices=True)
        return out
    if isinstance(layer, nn.QuantizedEmbedding):
        return WAYS[way](lambda rows: nn.QuantizedEmbedding.as_linear(layer, rows), x)
    return WAYS[way](lambda rows: nn.QuantizedLinear.__call__(layer, rows), x)


def _skinny(layer: Any, x: mx.array) -> mx.array:
    if layer.scales.dtype != x.dtype or x.dtype not in dequantizing.DTYPES:
        return computed(layer, GIVEN, x)
    rows = x if x.ndim == 3 else x.reshape(1, -1, x.shape[-1])
    out = skinny.multiply(rows, layer.weight, layer.scales, layer.biases, layer.bits, layer.group_size)
    out = out if x.ndim == 3 else out.reshape(*x.shape[:-1], -1)
    return out + layer.bias if "bias" in layer else out


def _dequantized(layer: Any, x: mx.array, indices: mx.array | None) -> mx.array:
    parts, by = (layer.weight, layer.scales, layer.get("biases")), Quantization(layer.bits, layer.group_size)
    if layer.scales.dtype != x.dtype or layer.mode != "affine":
        weights = mx.dequantize(*parts, **by._asdict(), mode=layer.mode, dtype=x.dtype)
    elif dequantizing.known(layer.mode, *by, x.dtype):
        weights = dequantizing.dequantized(*parts, *by)
    else:
        weights = dequantize(Quantized(*parts), by)
    weights = weights.swapaxes(-1, -2)
    if indices is None:
        out: mx.array = x @ weights
        return out + layer.bias if "bias" in layer else out
    out = mx.gather_mm(x, weights, rhs_indices=indices, sorted_indices=True)
    return out + mx.expand_dims(layer.bias[indices], -2) if "bias" in layer else out


class Shape(NamedTuple):
    """All that a product's speed depends on; `experts` may be 0."""

    inputs: int
    outputs: int
    mode: str
    bits: int
    group_size: int
    dtype: mx.Dtype
    experts: int = 0

    @classmethod
    def of(cls, layer: Any, dtype: mx.Dtype) -> Self:
        *experts, outputs, groups = layer.scales.shape
        how = layer.mode, layer.bits, layer.group_size
        return cls(groups * layer.group_size, outputs, *how, dtype, *experts)

    @property
    def skinny(self) -> bool:
        return not self.experts and skinny.known(self.inputs, self.mode, self.bits, self.group_size, self.dtype)

    @property
    def dequantized_bytes(self) -> int:
        return self.inputs * self.outputs * max(1, self.experts) * self.dtype.size

    def __str__(self) -> str:
        return f"{self.inputs} to {self.outputs}" + (f" of {self.experts} experts" if self.experts else "")


def quantized_layers(model: nn.Module, dtype: mx.Dtype) -> dict[Shape, list[Any]]:
    """Return layers that can have a choice, by shape, also inside LoRA layers."""
    found: dict[Shape, list[Any]] = {}
    known = set()
    for layer in model.modules():
        if type(layer) in (*_OURS, *_OURS.values()) and id(layer) not in known:
            known.add(id(layer))
            if getattr(layer, "global_scale", None) is None:
                found.setdefault(Shape.of(layer, dtype), []).append(layer)
    return dict(sorted(found.items(), key=lambda each: (each[0].experts, *each[0][:5])))


def install(layers: Sequence[Any], choice: ProductChoice) -> None:
    """Existing traces keep theirs."""
    for layer in layers:
        if not {SKINNY, DEQUANTIZED}.isdisjoint([*choice.steps.values(), *choice.chunks.values()]):
            for part in {"weight", "scales", "biases"} & set(layer):  # Kernels ignore strides.
                layer[part] = mx.contiguous(layer[part])
        layer.products = choice
        # Wrappers of layers refer to this object.
        layer.__class__ = _OURS.get(type(layer), type(layer))


def dequantized_bytes(model: nn.Module, dtype: mx.Dtype) -> int:
    shapes = quantized_layers(model, dtype).items()
    return 2 * max((shape.dequantized_bytes for shape, [layer, *_] in shapes if _dequantizes(layer)), default=0)


def _dequantizes(layer: Any) -> bool:
    return type(layer) in _OURS.values() and DEQUANTIZED in layer.products.chunks.values()
