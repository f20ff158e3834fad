"""Products of a decode step's rows with quantized weights: the seam where a network's linear layers meet MLX's kernels.

Decoding gives rows as x [rows, 1, K], and MLX's CUDA backend then reads the weights once for each row. The same rows as
[rows, K] are a matrix, for which it reads them once, but only from 8 rows on: with fewer it goes by row as well. So a
layer has three ways, and which of them is the fastest hangs on its shape and on the number of rows:

    K to N, 4 bits   rows    given  flattened   padded      (µs, an NVIDIA GPU; padded with zeros)
    2048 to 3072        2       16         24       24
                        4       23         33       19
                        8       35         18
    4096 to 14336       8      240         50
                       64     1665         86

A step of Llama 3.1 8B with 8 rows took 33.7 ms, flattened 17.3. `product_speeds` finds out what is right and fast; on
Metal, which flattens by itself, nothing is chosen.

Layers are changed one by one, in place, and never their class: another model over the same weights stays as it is.

Left as they are: the experts of MoE layers (`QuantizedSwitchLinear`), because each row has experts of its own, and
which rows share one is not known when the graph is built: mlx-lm sorts them by expert, from 64 on, and it is for the
kernel to read each matrix once. The heads of multi-head latent attention that have a matrix each
(`QuantizedMultiLinear`). And what is not quantized.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import mlx.nn as nn

GIVEN: Final = "given"
FLATTENED: Final = "flattened"
PADDED: Final = "flattened and padded"

MEASURED: Final = (2, 4, 8, 16, 32)
"""Numbers of rows that stand for all from them on, up to the next one."""
_MATRIX: Final = 8
"""Rows from which MLX takes a matrix for one."""

Product = Callable[[mx.array], mx.array]
"""[…, K] to […, N]."""


def flattened(product: Product, x: mx.array) -> mx.array:
    """The rows of x [..., 1, K] as one matrix."""
    return product(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def padded(product: Product, x: mx.array) -> mx.array:
    """The same with at least 8 rows: they are repeated by one copy, where zeros would take a fill and a copy."""
    rows = x.reshape(-1, x.shape[-1])
    count, width = rows.shape
    repeated = mx.broadcast_to(rows[None], (-(-_MATRIX // count), count, width)).reshape(-1, width)
    return product(repeated)[:count].reshape(*x.shape[:-1], -1)


WAYS: Final[dict[str, Callable[[Product, mx.array], mx.array]]] = {
    GIVEN: lambda product, x: product(x),
    FLATTENED: flattened,
    PADDED: padded,
}


def ways(rows: int) -> list[str]:
    """Those that are worth a trial with so many rows."""
    return [way for way in WAYS if way != PADDED or rows < _MATRIX]


class ProductChoice:
    """The way of products of one shape, by their rows."""

    def __init__(self, by_rows: Mapping[int, str]) -> None:
        """`by_rows`: of some in `MEASURED`; the others are computed as given."""
        self._by_rows = dict(by_rows)

    def at(self, rows: int) -> str:
        """The way for so many rows."""
        return self._by_rows.get(max((each for each in MEASURED if each <= rows), default=1), GIVEN)

    def compute(self, product: Product, x: mx.array) -> mx.array:
        """A product; as given where x is no decode step: of one row, or of more than one token each."""
        if x.ndim < 3 or x.shape[-2] != 1:
            return product(x)
        return WAYS[self.at(x.size // x.shape[-1])](product, x)


class _Linear(nn.QuantizedLinear):  # type: ignore[misc]
    products: ProductChoice

    def __call__(self, x: mx.array) -> mx.array:
        return self.products.compute(super().__call__, x)


class _Embedding(nn.QuantizedEmbedding):  # type: ignore[misc]
    products: ProductChoice

    def as_linear(self, x: mx.array) -> mx.array:
        return self.products.compute(super().as_linear, x)


_OURS: Final = {nn.QuantizedLinear: _Linear, nn.QuantizedEmbedding: _Embedding}
"""Exactly these: a class that is derived of them may compute something else."""


class Shape(NamedTuple):
    """What the speed of a product depends on: K, N, how the weights are quantized, and the dtype of x."""

    inputs: int
    outputs: int
    mode: str
    bits: int
    group_size: int
    dtype: mx.Dtype

    @classmethod
    def of(cls, layer: Any, dtype: mx.Dtype) -> Self:
        """Of a quantized layer."""
        outputs, groups = layer.scales.shape
        return cls(groups * layer.group_size, outputs, layer.mode, layer.bits, layer.group_size, dtype)


def quantized_layers(model: nn.Module, dtype: mx.Dtype) -> dict[Shape, list[Any]]:
    """All layers of a model that can have a choice, by shape in order, wherever they are: in LoRA's, too.

    `dtype` is that of what the layers are given. An embedding counts as the output that it may be.
    """
    found: dict[Shape, list[Any]] = {}
    known = set()
    for layer in model.modules():
        if type(layer) in (*_OURS, *_OURS.values()) and id(layer) not in known:
            known.add(id(layer))
            found.setdefault(Shape.of(layer, dtype), []).append(layer)
    return dict(sorted(found.items(), key=lambda each: each[0][:-1]))


def as_given(layer: Any) -> Product:
    """The product of a layer, whatever was chosen for it."""
    if isinstance(layer, nn.QuantizedEmbedding):
        return lambda x: nn.QuantizedEmbedding.as_linear(layer, x)
    return lambda x: nn.QuantizedLinear.__call__(layer, x)


def install(layers: Sequence[Any], choice: ProductChoice) -> None:
    """Have layers compute by a choice, from now on; what was traced before stays as it is."""
    for layer in layers:
        layer.products = choice
        # Not another object in its place: models, and what wraps layers, refer to this one.
        layer.__class__ = _OURS.get(type(layer), type(layer))
