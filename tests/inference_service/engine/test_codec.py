"""The scheme `rotated`: what it gains, that reading undoes what writing did, and what it must never change."""

import hashlib
from itertools import chain

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.attention.reference import out_of_rotation, plain_values
from inference_service.engine.codec import Basis, KVCodec
from inference_service.engine.quantization import BALANCED, PLAIN, ROTATED, KVFormat, Quantization, dequantize, quantize
from inference_service.engine.rotation import rotated, rotated_back, signs
from tests.inference_service.engine.geometries import random


@pytest.mark.parametrize("width", [32, 64, 80, 96, 128, 192, 256, 512, 576])
def test_rotated_keeps_scores_and_comes_back(width: int) -> None:
    x, y = random(3, width), random(3, width, seed=1)
    assert mx.allclose(rotated_back(rotated(x)), x, atol=1e-5)
    assert mx.allclose(rotated(x) @ rotated(y).T, x @ y.T, atol=1e-3)


def test_the_signs_are_those_of_all_files_that_were_ever_written() -> None:
    """Other signs would read KV of other versions wrongly, and no fingerprint would tell."""
    assert signs(64) == signs(128)[:64]
    text = "".join("+" if sign > 0 else "-" for sign in signs(1024))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "137759561bb395485d8016da14ab5ae8283bb6ab679cd331ceb7937e9532b30e"
    )


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_scores_over_keys_with_an_outlier_and_a_mean_are_several_times_closer(bits: int) -> None:
    keys = random(1, 2, 400, 64) + 2 * random(2, 1, 64, seed=1)
    keys[..., 31] += 20
    mean = keys.mean(axis=2)[0]
    queries = random(1, 2, 50, 64, seed=2)
    errors = {}
    for scheme in (PLAIN, ROTATED):
        by = KVFormat(bits, bits, 64, scheme)
        codec = KVCodec(by, (mean, mean))
        packed, _ = codec.encode(keys, keys)
        left = plain_values(packed, by.k, mean, out_of_rotation(64) if scheme == ROTATED else None)
        off = queries @ (left - keys).swapaxes(2, 3)
        # A number that is the same in all scores of a query is not seen by the softmax.
        errors[scheme] = mx.square(off - off.mean(axis=3, keepdims=True)).mean()
    assert (errors[ROTATED] < errors[PLAIN] / 4).item(), "squared error of scores"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("by", ["mlx", pytest.param("kernels", marks=pytest.mark.slow)])
def test_rows_do_not_depend_on_what_is_beside_them(by: str, dtype: mx.Dtype, request: pytest.FixtureRequest) -> None:
    """Packed bits of a token are the same in a chunk, alone and in a batch, or hot would differ from cold."""
    if by == "kernels":
        request.getfixturevalue("kernels")
    k, v = random(3, 2, 37, 80, dtype=dtype), random(3, 2, 37, 96, dtype=dtype, seed=1)
    codec = KVCodec(KVFormat(4, 4, 32), (random(2, 80, dtype=dtype, seed=2), random(2, 96, dtype=dtype, seed=3)))
    whole = codec.encode(k, v)
    for row, at, n in ((0, 0, 1), (2, 5, 20), (1, 36, 1)):
        alone = codec.encode(k[row : row + 1, :, at : at + n], v[row : row + 1, :, at : at + n])
        for found, wanted in zip(alone, whole, strict=True):
            for part, of in zip(found, wanted, strict=True):
                assert mx.array_equal(part, of[row : row + 1, :, at : at + n])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("k_bits", "v_bits", "group_size"), [(4, 4, 64), (5, 4, 32), (6, 6, 32), (8, 8, 64)])
def test_a_step_stores_what_a_chunk_stores(k_bits: int, v_bits: int, group_size: int, dtype: mx.Dtype) -> None:
    """Packed bits, and the arrays that layers attend over, or hot would differ from warm."""
    heads, width = 2, 80 + -80 % group_size
    matrices = [np.random.default_rng(seed).normal(size=(heads, width, width)) for seed in range(2)]
    bases = (Basis.of(matrices[0], dtype, keys=True), Basis.of(matrices[1], dtype, keys=False))
    means = (random(heads, 80, dtype=dtype), random(heads, 80, dtype=dtype, seed=1))
    codec = KVCodec(KVFormat(k_bits, v_bits, group_size, BALANCED), means, bases)
    k, v = random(3, heads, 9, 80, dtype=dtype, seed=2), random(3, heads, 9, 80, dtype=dtype, seed=3)
    packed, arrays = codec.stored(k, v)
    by_side = codec.encode(k, v)
    if len(packed) == 2:
        as_one = zip(chain(*packed), chain(*by_side), strict=True)
    else:
        as_one = zip(
            packed[0], (mx.concatenate(list(sides), axis=1) for sides in zip(*by_side, strict=True)), strict=True
        )
    assert all(mx.array_equal(found, wanted) for found, wanted in as_one)
    for found, wanted in zip(arrays, codec.decode(*by_side), strict=True):
        assert mx.array_equal(found, wanted)
    for at in range(9):
        alone, of_step = codec.stored(k[:, :, at : at + 1], v[:, :, at : at + 1])
        for found, wanted in zip([*chain(*alone), *of_step], [*chain(*packed), *arrays], strict=True):
            assert mx.array_equal(found, wanted[:, :, at : at + 1])


def test_a_released_codec_holds_no_memory() -> None:
    """References to an unloaded model go only when Python next looks for cycles."""
    mx.eval(rotated(random(1, 64)))  # the signs, which all codecs share
    before = mx.get_active_memory()
    codec = KVCodec(KVFormat(), (random(2, 64), random(2, 64, seed=1)))
    mx.eval(codec.k_mean, codec.v_mean)
    assert mx.get_active_memory() > before
    codec.release()
    assert mx.get_active_memory() <= before


@pytest.mark.parametrize("scheme", [PLAIN, ROTATED])
def test_what_comes_back_has_its_means(scheme: str) -> None:
    k, v = random(2, 3, 9, 80, seed=1) + 5, random(2, 3, 9, 48, seed=2) - 5
    codec = KVCodec(KVFormat(8, 8, 32, scheme), (mx.full((3, 80), 5.0), mx.full((3, 48), -5.0)))
    for found, x in zip(codec.decode(*codec.encode(k, v)), (k, v), strict=True):
        width = x.shape[-1]
        assert found.shape == (2, 3, 9, width + -width % 32)
        assert mx.allclose(found[..., :width], x, atol=0.05)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("bits", "group_size"), [(2, 32), (3, 32), (4, 32), (4, 64), (6, 64), (8, 128)])
def test_values_of_packed_elements_are_mlxs_to_the_bit(bits: int, group_size: int, dtype: mx.Dtype) -> None:
    by = Quantization(bits, group_size)
    for shape in ((1, 3, 1, 128), (5, 2, 40, 256)):
        packed = quantize(mx.random.normal(shape, key=mx.random.key(bits)).astype(dtype) + 3, by)
        found = dequantize(packed, by)
        assert found.dtype == dtype and found.shape == shape
        assert mx.array_equal(found, mx.dequantize(*packed, group_size=group_size, bits=bits))
