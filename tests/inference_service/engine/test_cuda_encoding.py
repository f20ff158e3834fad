"""The kernel that packs K and V, whatever is packed with it; and what it does not know."""

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.bits import BITS
from inference_service.engine.attention.reference import out_of_rotation, plain_values
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_encoding import encoded
from inference_service.engine.quantization import KVFormat, Quantization, Quantized, dequantize, filled_up
from inference_service.engine.rotation import rotated
from tests.inference_service.engine.geometries import random

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("kernels")]

WIDTHS = [(64, 64, 32), (80, 64, 32), (96, 160, 32), (128, 128, 64), (192, 128, 64), (256, 512, 128)]


def in_packed_basis(packed: tuple[Quantized, Quantized], codec: KVCodec) -> tuple[mx.array, mx.array]:
    """Unpack K and V to arrays, rotated and without means."""
    return dequantize(packed[0], codec.format.k), dequantize(packed[1], codec.format.v)


def fitted(x: mx.array, by: Quantization) -> mx.array:
    """Return `x` as codes of each group's whole range leave it, by least squares."""
    groups = np.array(x, np.float64).reshape(-1, by.group_size)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    codes = np.rint((groups - low) / (high - low) * (2**by.bits - 1))
    fits = [np.polyval(np.polyfit(row, group, 1), row) for row, group in zip(codes, groups, strict=True)]
    return mx.array(np.array(fits, np.float32)).reshape(x.shape)


def near(found: mx.array, wanted: mx.array) -> bool:
    """Equal, but where rounding on the way has made another code."""
    return bool(((mx.abs(found - wanted) < 1e-4).mean() > 0.995).item())


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("k_dim", "v_dim", "group_size"), WIDTHS)
def test_the_kernel_packs_with_the_least_squared_error(k_dim: int, v_dim: int, group_size: int, centred: bool) -> None:
    k = random(2, 5, 3, k_dim).swapaxes(1, 2)  # as a projection gives them
    v = random(2, 3, 5, v_dim, seed=1)
    means = (random(3, k_dim, seed=2), random(3, v_dim, seed=3)) if centred else None
    codec = KVCodec(KVFormat(5, 4, group_size), means)
    found = in_packed_basis(codec.encode(k, v), codec)
    sides = zip((k, v), (codec.k_mean, codec.v_mean), found, (codec.format.k, codec.format.v), strict=True)
    for x, mean, levels, by in sides:
        assert near(levels, fitted(rotated(filled_up(x, group_size), mean), by))


@pytest.mark.slow("5-dtype0")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("bits", BITS)
def test_of_all_bits_and_types_only_rounding_is_lost(bits: int, dtype: mx.Dtype) -> None:
    """At 8 bits, scale and bias in bfloat16 add some."""
    x = random(1, 2, 65, 96, dtype=dtype)
    codec = KVCodec(KVFormat(bits, bits, 32), (random(2, 96, dtype=dtype, seed=2),) * 2)
    packed, _ = codec.encode(x, x)
    exact = Quantized(packed.weights, packed.scales.astype(mx.float32), packed.biases.astype(mx.float32))
    assert codec.k_mean is not None
    left = plain_values(exact, codec.format.k, codec.k_mean[:, 0], out_of_rotation(96))
    error = mx.square(left - x.astype(mx.float32)).mean().sqrt() / (mx.abs(exact.scales).mean() / 12**0.5)
    assert error < (1.6 if (bits, dtype) == (8, mx.bfloat16) else 1.1)


def test_groups_without_a_range() -> None:
    k = mx.zeros((1, 1, 3, 64))
    k[0, 0, 1] = 1.0
    k[0, 0, 2, 3] = 1.0
    codec = KVCodec(KVFormat(4, 4, 32))
    found, _ = in_packed_basis(codec.encode(k, k), codec)
    assert mx.array_equal(found[0, 0, 0], mx.zeros(64))
    assert mx.allclose(found[0, 0, 1:], rotated(k[0, 0, 1:]), atol=0.15)


def test_what_the_kernel_does_not_know_is_left_to_mlx() -> None:
    k, by = random(1, 2, 3, 64), KVFormat()
    assert encoded(k, k, None, by) is not None
    assert encoded(k, k.astype(mx.float16), None, by) is None
    assert encoded(k, k, (mx.zeros((2, 1, 64), mx.float16),) * 2, by) is None
    assert encoded(k.astype(mx.int32), k.astype(mx.int32), None, by) is None
    assert encoded(k, random(1, 1, 3, 64), None, by) is None
