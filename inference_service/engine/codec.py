"""The codec of a layer's KV: transforms of K and V before packing, and of queries and outputs in return.

`plain` packs K and V as they are. `rotated` first centres and rotates them, `balanced` has matrices of each KV head:

    rotated     packed K = (K - mean of K) R        packed V = (V - mean of V) R        R = diag(signs) Hadamard
    balanced    packed K = (K - mean of K) E R      packed V = (V - mean of V) F R

- **Centred.** A constant subtracted from all keys of a head shifts all scores of a query alike, which the softmax
  ignores; only the logit of a sink has to be shifted, too. The mean of V is added to the output, times the sum of the
  weights.
- **Rotated.** R is orthogonal: scores stay, and an output is rotated back once per query. It spreads outlier channels
  (QuIP#, Tseng et al. 2024; QuaRot, Ashkboos et al. 2024).
- **Balanced.** Queries are multiplied by the inverse of E, outputs by that of F. Both are measured (`balancing`):
  errors are large where the model does not look.

Figures are in docs/concepts.
"""

from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.blas_threads import one_blas_thread
from inference_service.engine.cuda_encoding import encoded
from inference_service.engine.device import on_cpu
from inference_service.engine.quantization import (
    FOUR_BITS,
    PLAIN,
    ROTATED,
    KVFormat,
    Quantization,
    Quantized,
    dequantize,
    filled_up,
    quantize,
    quantized_and_read,
)
from inference_service.engine.rotation import rotated, rotated_back

_MOST_ROWS: Final = 16
_WIDEST: Final = 256
"""Widest rows that kernels multiply with bases: beyond, shared memory is too small."""


class Basis(NamedTuple):
    """The matrices of a layer's K or V, [kv_heads, width, width]; widths are whole groups. `back` and `across` share
    memory.
    """

    into: mx.array
    """E R."""
    back: mx.array
    """The inverse of `into`."""
    across: mx.array
    """The transpose of `back`."""

    @classmethod
    def of(cls, matrices: npt.NDArray[np.float64], dtype: mx.Dtype, *, keys: bool) -> Self:
        """Return matrices rounded to a dtype, with the inverses of these, in rows as kernels read them: `across` of
        keys, for queries, and `back` of values.
        """
        into = mx.array(matrices.astype(np.float32)).astype(dtype)
        whole = np.array(into.astype(mx.float32), dtype=np.float64)
        with one_blas_thread():
            back = np.linalg.inv(whole).astype(np.float32)
        in_rows = mx.array(back.swapaxes(1, 2).copy() if keys else back).astype(dtype)
        turned = in_rows.swapaxes(1, 2)
        mx.eval(into, turned)
        return cls(into, turned, in_rows) if keys else cls(into, in_rows, turned)


class KVCodec:
    """Packs and reads one layer's K and V. Engine thread only.

    `means` of K and V are [kv_heads, width] in the compute dtype. `bases` are for `balanced`; without them it packs as
    `plain`. The "packed basis" is that of packed K and V, and of queries and outputs over them, padded to whole groups.
    """

    def __init__(
        self,
        format: KVFormat = FOUR_BITS,
        means: tuple[mx.array, mx.array] | None = None,
        bases: tuple[Basis, Basis] | None = None,
    ) -> None:
        self.format = format
        self.rotates = format.scheme == ROTATED
        self.k_mean, self.v_mean = (
            None if mean is None or format.scheme == PLAIN else filled_up(mean, format.group_size)[:, None]
            for mean in means or (None, None)
        )
        """Subtracted from K and V, [kv_heads, 1, padded width]."""
        self.k_basis: Basis | None = None
        self.v_basis: Basis | None = None
        self.packed_means: tuple[mx.array, mx.array] | None = None
        """In the packed basis, [kv_heads, 1, padded width], if there are bases."""
        if bases is not None:
            self.k_basis, self.v_basis = bases
        self._shifts = [
            None if basis is None or mean is None else -(mean @ basis.into)
            for basis, mean in ((self.k_basis, self.k_mean), (self.v_basis, self.v_mean))
        ]
        if self._shifts[0] is not None and self._shifts[1] is not None:
            self.packed_means = -self._shifts[0], -self._shifts[1]
        self._sides = self._in_operations()

    @property
    def output_mean(self) -> mx.array | None:
        """The mean that outputs of kernels lack, before `outputs`: [kv_heads, 1, padded v_dim]."""
        return self.v_mean if self.packed_means is None else self.packed_means[1]

    @property
    def centred(self) -> bool:
        return self.k_mean is not None

    @property
    def kernel_means(self) -> tuple[mx.array, mx.array] | None:
        """Means that kernels subtract and add, [kv_heads, 1, padded width]."""
        if self.k_basis is not None or self.k_mean is None or self.v_mean is None:
            return None
        return self.k_mean, self.v_mean

    @property
    def kernel_bases(self) -> tuple[Basis, Basis] | None:
        """The bases if kernels for NVIDIA GPUs are to multiply with them, and to subtract and add the means."""
        if not self.centred or self.k_basis is None or self.v_basis is None:
            return None
        bases = self.k_basis, self.v_basis
        fit = all(basis.into.itemsize == 2 and basis.into.shape[-1] <= _WIDEST for basis in bases)
        return bases if fit else None

    def balanced(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return K [rows, kv_heads, n, k_dim] and V as kernels get them: centred, in the bases, if there are any."""
        if self.k_basis is None or self.v_basis is None:
            return keys, values
        keys, values = (filled_up(x, self.format.group_size) for x in (keys, values))
        return _by_head(keys, self.k_basis.into, self._shifts[0]), _by_head(values, self.v_basis.into, self._shifts[1])

    def unbalanced(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Invert `balanced`, padded."""
        if self.k_basis is None or self.v_basis is None:
            return keys, values
        return _by_head(keys, self.k_basis.back, self.k_mean), _by_head(values, self.v_basis.back, self.v_mean)

    def queries(self, queries: mx.array) -> mx.array:
        """Return queries [rows, heads, n, padded k_dim] as kernels get them."""
        return queries if self.k_basis is None else _by_head(queries, self.k_basis.across)

    def outputs(self, outputs: mx.array) -> mx.array:
        """Return the model's outputs [rows, heads, n, padded v_dim] of those of kernels."""
        return outputs if self.v_basis is None else _by_head(outputs, self.v_basis.back)

    def encode(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Pack K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim]."""
        keys, values = self.balanced(keys, values)
        if (
            self.format.scheme != PLAIN
            and (packed := encoded(keys, values, self.kernel_means, self.format)) is not None
        ):
            return packed
        return self._encode(keys, values)

    def decode(self, keys: Quantized, values: Quantized) -> tuple[mx.array, mx.array]:
        """Return K and V [rows, kv_heads, n, padded width] in the model's own basis, with their means."""
        k, v = dequantize(keys, self.format.k), dequantize(values, self.format.v)
        return (rotated_back(k, self.k_mean), rotated_back(v, self.v_mean)) if self.rotates else self.unbalanced(k, v)

    def stored(self, keys: mx.array, values: mx.array) -> tuple[list[Quantized], list[mx.array]]:
        """Return what `encode` packs, and what `decode` makes of that. One packed part has K's heads, then V's."""
        if not self._sides:
            sides = self.encode(keys, values)
            return list(sides), list(self.decode(*sides))
        as_one = len(self._sides) == 1
        new = [filled_up(x, self.format.group_size) for x in (keys, values)]
        new = [mx.concatenate(new, axis=1)] if as_one else new
        store = _step_stored if keys.shape[2] == 1 and len(keys) <= _MOST_ROWS else _stored
        found = [store(x, *side) for x, side in zip(new, self._sides, strict=True)]
        packed, arrays = [Quantized(*parts) for parts, _ in found], [array for _, array in found]
        return packed, list(mx.split(arrays[0], 2, axis=1)) if as_one else arrays

    def release(self) -> None:
        self.k_mean = self.v_mean = self.k_basis = self.v_basis = self.packed_means = None
        self._shifts = [None, None]
        self._sides = []

    def _in_operations(self) -> list[tuple[Any, ...]]:
        """Return arguments of `_stored` on a CPU: for K and V, or for both if they are packed alike: half as many
        operations, a twentieth of a step of SmolLM2.
        """
        (k_basis, v_basis), (k_shift, v_shift) = (self.k_basis, self.v_basis), self._shifts
        k_mean, v_mean = self.k_mean, self.v_mean
        if k_basis is None or k_shift is None or k_mean is None or v_basis is None or v_shift is None or v_mean is None:
            return []
        if not on_cpu():
            return []
        sides = [(k_basis.into, k_basis.back, k_shift, k_mean), (v_basis.into, v_basis.back, v_shift, v_mean)]
        if self.format.k != self.format.v or k_mean.shape != v_mean.shape:
            return [(*by, *side) for by, side in zip((self.format.k, self.format.v), sides, strict=True)]
        into, back, shift, mean = (mx.concatenate(list(side)) for side in zip(*sides, strict=True))
        k_heads, v_heads = slice(None, len(k_mean)), slice(len(k_mean), None)
        self.k_basis, self.v_basis = (
            Basis(into[of], back[of], mx.contiguous(back[of].swapaxes(1, 2))) for of in (k_heads, v_heads)
        )  # Views, so that there is one copy; `across` is made where kernels read it.
        return [(*self.format.k, into, back, shift, mean)]

    def _encode(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        k_mean, v_mean = self.kernel_means or (None, None)
        return (
            quantize(self._packed_basis(keys, k_mean), self.format.k),
            quantize(self._packed_basis(values, v_mean), self.format.v),
        )

    def _packed_basis(self, x: mx.array, mean: mx.array | None) -> mx.array:
        x = filled_up(x, self.format.group_size)
        return rotated(x, mean) if self.rotates else x


def _stored(
    x: mx.array, bits: int, group_size: int, into: mx.array, back: mx.array, shift: mx.array, mean: mx.array
) -> tuple[list[mx.array], mx.array]:
    packed, read = quantized_and_read(_by_head(x, into, shift), Quantization(bits, group_size))
    return list(packed), _by_head(read, back, mean)


_step_stored = mx.compile(_stored)
"""Python's calls took 6 % of a step of the demo model. It keeps 50 KB for each number of rows."""


def _by_head(x: mx.array, by: mx.array, plus: mx.array | None = None) -> mx.array:
    """Multiply [rows, heads, n, width] by the matrix [kv_heads, width, width] of each head's KV head, plus [kv_heads,
    1, width].
    """
    rows, heads, n, width = x.shape
    each = x.reshape(rows, len(by), heads // len(by) * n, width)
    if rows > 1:
        each = each.swapaxes(0, 1).reshape(len(by), -1, width)
    found = each @ by if plus is None else mx.addmm(plus, each, by)
    return (found.reshape(len(by), rows, -1, width).swapaxes(0, 1) if rows > 1 else found).reshape(x.shape)
