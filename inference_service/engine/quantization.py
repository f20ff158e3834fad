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
    packed = Quantized(*mx.quantize(x, group_size=by.group_size, bits=by.bits))
    if by.bits == MOST_BITS:
        return packed
    scales, biases = (part.astype(mx.float32)[..., None] for part in packed[1:])
    values = dequantize(Quantized(packed.weights, scales[..., 0], biases[..., 0]), by)
    x, values = (each.reshape(*scales.shape[:-1], by.group_size) for each in (x, values))
    mean, mean_of_codes = x.astype(mx.float32).mean(axis=-1, keepdims=True), values.mean(axis=-1, keepdims=True)
    products, squares = _products(x, values, mean_of_codes)
    wide = products.sum(axis=-1, keepdims=True), squares.sum(axis=-1, keepdims=True)
    scale = _scale(scales, *wide).astype(x.dtype)
    bias = _bias(scale, scales, biases, mean, mean_of_codes).astype(x.dtype)
    return packed._replace(scales=scale[..., 0], biases=bias[..., 0])


# One operation each: a step pays for launches.
@partial(mx.compile, shapeless=True)
def _products(x: mx.array, values: mx.array, mean: mx.array) -> tuple[mx.array, mx.array]:
    off = values - mean
    return x.astype(mx.float32) * off, off * off


@partial(mx.compile, shapeless=True)
def _scale(scales: mx.array, products: mx.array, squares: mx.array) -> mx.array:
    wide = squares > scales * scales  # Else there is no range.
    return mx.where(wide, products / mx.where(wide, squares, 1.0), 1.0) * scales


@partial(mx.compile, shapeless=True)
def _bias(scale: mx.array, scales: mx.array, biases: mx.array, mean: mx.array, mean_of_codes: mx.array) -> mx.array:
    return mean - scale.astype(mx.float32) * ((mean_of_codes - biases) / scales)


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
