"""Products with quantized weights: the seam between a network's linear layers and MLX's kernels.

MLX's CUDA backend reads the weights once per row of a decode step, and for a matrix once, but with a kernel that leaves
most of the GPU idle where K is long. So a few rows have a kernel of our own (`skinny`); for weights that it does not
support, rows are flattened, or padded to 8.

    K to N, 4 bits    rows    given  flattened   skinny    (µs, an H100)
    4096 to 14336        8      240                  55
                        32      869         78       73
    14336 to 4096        8      258        300       54

With it, 32 agents of Llama 3.1 8B at 2,048 tokens decoded 10 times as many tokens/s as mlx-lm in the same run, without
it 4.8 times as many (`engine-llama-3.1-8b-2k-gpu`).

For a chunk's many rows the weights are dequantized as a whole and multiplied by the backend's BLAS. The same holds for
the experts of MoE layers, whose rows come sorted by expert.

    2048 to 8192, 4 bits, rows     16      64     256       (ms, two cores with OpenBLAS, float32)
    given                         236    1004    4146
    dequantized                   122     135     192

`product_speeds` finds out which way is fast and right; on Metal nothing is chosen. Layers are changed in place, MLX's
classes never. Unchanged are unquantized layers, `QuantizedMultiLinear`, and the experts of a decode step, since which
rows share one is unknown when the graph is built.
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
"""Rows of a decode step to measure; each stands for all numbers up to the next."""
CHUNK_ROWS: Final = (16, 64, 256)
"""As STEP_ROWS, for a chunk; for MoE layers, the average rows per expert."""
_MATRIX: Final = 8
"""Rows from which MLX treats the input as a matrix."""

Product = Callable[[mx.array], mx.array]
"""[…, K] to […, N]."""


def flattened(product: Product, x: mx.array) -> mx.array:
    return product(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def padded(product: Product, x: mx.array) -> mx.array:
    """As `flattened`, with at least 8 rows, repeated in one copy."""
    rows = x.reshape(-1, x.shape[-1])
    count, width = rows.shape
    repeated = mx.broadcast_to(rows[None], (-(-_MATRIX // count), count, width)).reshape(-1, width)
    return product(repeated)[:count].reshape(*x.shape[:-1], -1)


WAYS: Final[dict[str, Callable[[Product, mx.array], mx.array]]] = {
    GIVEN: lambda product, x: product(x),
    FLATTENED: flattened,
    PADDED: padded,
}
"""Ways that use MLX's product over packed weights."""


class ProductChoice:
    """The way of computing products of one shape, by number of rows."""

    def __init__(self, steps: Mapping[int, str], chunks: Mapping[int, str]) -> None:
        """Take the ways by rows of a decode step, and of a chunk, each for all numbers up to the next."""
        self.steps = dict(steps)
        self.chunks = dict(chunks)

    def step(self, rows: int) -> str:
        return _at(self.steps, rows)

    def chunk(self, rows: int) -> str:
        """Return the way for a chunk of so many rows, or so many of each expert."""
        return _at(self.chunks, rows)

    def of(self, x: mx.array) -> str:
        """Return the way for x […, K]; a decode step has one token per row."""
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
    """Return the product with x […, K] by `way`, whatever was chosen for the layer.

    For experts, x is [rows, 1, K] and `indices` [rows] the sorted expert of each row; only by GIVEN or DEQUANTIZED.
    """
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
    """Multiply by the skinny kernel, or as given if it does not support the dtypes."""
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
    """All that a product's speed depends on: K, N, quantization, the dtype of x, and the number of experts or 0."""

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
    """Return all layers of a model that can have a choice, by shape in order, those inside LoRA layers too. `dtype` is
    that of their input. An embedding counts as an output layer.
    """
    found: dict[Shape, list[Any]] = {}
    known = set()
    for layer in model.modules():
        if type(layer) in (*_OURS, *_OURS.values()) and id(layer) not in known:
            known.add(id(layer))
            if getattr(layer, "global_scale", None) is None:
                found.setdefault(Shape.of(layer, dtype), []).append(layer)
    return dict(sorted(found.items(), key=lambda each: (each[0].experts, *each[0][:5])))


def install(layers: Sequence[Any], choice: ProductChoice) -> None:
    """Make layers compute by a choice from now on; existing traces keep theirs."""
    for layer in layers:
        if not {SKINNY, DEQUANTIZED}.isdisjoint([*choice.steps.values(), *choice.chunks.values()]):
            for part in {"weight", "scales", "biases"} & set(layer):  # Kernels ignore strides.
                layer[part] = mx.contiguous(layer[part])
        layer.products = choice
        # Not a new object: wrappers of layers refer to this one.
        layer.__class__ = _OURS.get(type(layer), type(layer))


def dequantized_bytes(model: nn.Module, dtype: mx.Dtype) -> int:
    """Return the bytes of the largest weights that chunks dequantize, of two layers because they may overlap."""
    shapes = quantized_layers(model, dtype).items()
    return 2 * max((shape.dequantized_bytes for shape, [layer, *_] in shapes if _dequantizes(layer)), default=0)


def _dequantizes(layer: Any) -> bool:
    return type(layer) in _OURS.values() and DEQUANTIZED in layer.products.chunks.values()
