"""Quantization of K and V by MLX's affine scheme: a group has one scale and one bias."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, NamedTuple, Self

import mlx.core as mx

from agentmem.kv.bits import BITS, KVBits, SideBits
from inference_service.engine.device import on_cpu

PLAIN: Final = "plain"
ROTATED: Final = "rotated"
BALANCED: Final = "balanced"


MOST_BITS: Final = BITS[-1]


class Quantization(NamedTuple):
    bits: int
    group_size: int


@dataclass(frozen=True)
class KVFormat:
    """`scheme` is the transform before; layers with windows may have bits of their own."""

    k_bits: int = 4
    v_bits: int = 4
    group_size: int = 64
    scheme: str = ROTATED
    windows: SideBits | None = None

    @property
    def bits(self) -> KVBits:
        return KVBits(self.k_bits, self.v_bits, self.windows)

    @property
    def k(self) -> Quantization:
        return Quantization(self.k_bits, self.group_size)

    @property
    def v(self) -> Quantization:
        return Quantization(self.v_bits, self.group_size)

    @property
    def of_windows(self) -> Self:
        k, v = self.bits.of_windows
        return replace(self, k_bits=k, v_bits=v, windows=None)

    def with_bits(self, bits: str) -> Self:
        k, v, windows = KVBits.parse(bits)
        return replace(self, k_bits=k, v_bits=v, windows=windows)

    def __str__(self) -> str:
        return str(self.bits)


FOUR_BITS: Final = KVFormat()


class Quantized(NamedTuple):
    """`weights` uint32 [..., width * bits / 32]; `scales` and `biases` [..., width / group_size] in the compute
    dtype.
    """

    weights: mx.array
    scales: mx.array
    biases: mx.array

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self)

    @property
    def dtype(self) -> mx.Dtype:
        """Phi-2 and StableLM return to it from float32."""
        return self.scales.dtype


def quantize(x: mx.array, by: Quantization) -> Quantized:
    """Codes are MLX's; below 8 bits scales and biases have the least squared error: a quarter of SmolLM2's divergence
    less.
    """
    return quantized_and_read(x, by)[0]


def quantized_and_read(x: mx.array, by: Quantization) -> tuple[Quantized, mx.array]:
    """Return what `quantize` packs, and what `dequantize` makes of that."""
    packed = Quantized(*mx.quantize(x, group_size=by.group_size, bits=by.bits))
    if by.bits == MOST_BITS:
        return packed, dequantize(packed, by)
    *shape, groups = packed.scales.shape
    codes = _codes(packed, by).reshape(*shape, groups, by.group_size)
    scales, biases = (part.reshape(*shape, groups, 1) for part in packed[1:])
    each = _errors(x.reshape(codes.shape), codes, scales, biases)
    sums = [part.sum(axis=-1, keepdims=True) for part in (codes, *each)]
    scales, biases = _least_squares(scales, biases, _size(by.group_size), *sums)
    packed = Quantized(packed.weights, *(part.reshape(*shape, groups) for part in (scales, biases)))
    if not on_cpu() or 32 % by.bits:
        return packed, dequantize(packed, by)
    return packed, _values(codes, scales, biases).reshape(x.shape)


def _codes(packed: Quantized, by: Quantization) -> mx.array:
    if on_cpu() and not 32 % by.bits:
        return _unpacked(packed.weights[..., None], *_places(by.bits))
    one = mx.ones(packed.scales.shape)
    return mx.dequantize(packed.weights, one, mx.zeros_like(one), group_size=by.group_size, bits=by.bits)


# One operation each: a step pays for launches.
@partial(mx.compile, shapeless=True)
def _unpacked(words: mx.array, shifts: mx.array, mask: mx.array) -> mx.array:
    return ((words >> shifts) & mask).astype(mx.float32)


@partial(mx.compile, shapeless=True)
def _errors(x: mx.array, codes: mx.array, scales: mx.array, biases: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Return errors in scales, errors times codes, squares of codes."""
    errors = (x.astype(mx.float32) - biases) / scales.astype(mx.float32) - codes
    return errors, errors * codes, codes * codes


@partial(mx.compile, shapeless=True)
def _least_squares(
    scales: mx.array,
    biases: mx.array,
    n: mx.array,
    codes: mx.array,
    errors: mx.array,
    products: mx.array,
    squares: mx.array,
) -> tuple[mx.array, mx.array]:
    spread = squares - codes * codes / n
    wide = spread > 0.5  # Else all codes are the same: there is no range.
    steeper = mx.where(wide, (products - errors * codes / n) / mx.where(wide, spread, 1.0), 0.0)
    found = (scales * (1.0 + steeper)).astype(scales.dtype)
    mean = biases + scales * ((errors + codes) / n)
    return found, (mean - found.astype(mx.float32) * (codes / n)).astype(scales.dtype)


@partial(mx.compile, shapeless=True)
def _values(codes: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
    return codes.astype(scales.dtype) * scales + biases


@lru_cache(maxsize=8)
def _size(group_size: int) -> mx.array:
    return mx.array(float(group_size))


def filled_up(x: mx.array, group_size: int) -> mx.array:
    """Pad [..., width] with zeros to whole groups."""
    missing = -x.shape[-1] % group_size
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def dequantize(x: Quantized, by: Quantization) -> mx.array:
    """MLX's five operations take a CPU eight times as long for one token."""
    if not on_cpu() or 32 % by.bits:
        return mx.dequantize(*x, group_size=by.group_size, bits=by.bits)
    *shape, groups = x.scales.shape
    shifts, mask = _places(by.bits)
    words = x.weights.reshape(*shape, groups, -1, 1)
    scales, biases = (part.reshape(*shape, groups, 1, 1) for part in (x.scales, x.biases))
    return _levels(words, shifts, mask, scales, biases).reshape(*shape, groups * by.group_size)


@lru_cache(maxsize=8)
def _places(bits: int) -> tuple[mx.array, mx.array]:
    return mx.array(list(range(0, 32, bits)), dtype=mx.uint32), mx.array((1 << bits) - 1, dtype=mx.uint32)


@partial(mx.compile, shapeless=True)
def _levels(words: mx.array, shifts: mx.array, mask: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
    return ((words >> shifts) & mask).astype(scales.dtype) * scales + biases


def last_axes(width: int, by: Quantization) -> dict[str, int]:
    return {"weights": width * by.bits // 32, "scales": width // by.group_size, "biases": width // by.group_size}


def bytes_per_element(dtype: mx.Dtype, by: Quantization) -> float:
    return by.bits / 8 + 2 * dtype.size / by.group_size
