"""Attention over latents is right: over arrays, and by the kernel over packed ones in blocks, whose proof at load finds
what is not.
"""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from agentmem.kv.bits import BITS
from inference_service.engine.attention.latents import over_arrays
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import ROUNDING, few_queries_error, one_query_error, unpacking_error
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged import attention
from inference_service.engine.quantization import PLAIN, ROTATED
from inference_service.models.proof import attention_paths
from tests.inference_service.engine.geometries import geometry, with_bits

pytestmark = pytest.mark.sampled(3)


def latents(heads: int = 4, k_dim: int = 128, v_dim: int = 64, dtype: mx.Dtype = mx.float16, **more: Any) -> Geometry:
    return replace(geometry(heads=heads, kv_heads=1, k_dim=k_dim, v_dim=v_dim, dtype=dtype, **more), latents=True)


PAIRS = list(zip(BITS, (*BITS[2:], *BITS[:2]), strict=True))
"""All bits of latents and all of rotary keys."""
OF_16_BITS = [latents(heads=16, k_dim=512, group=64, dtype=mx.bfloat16), latents()]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("heads", "k_dim", "v_dim"), [(4, 128, 64), (16, 512, 64), (3, 96, 32)])
@pytest.mark.parametrize("n", [1, 5])
def test_over_arrays_it_is_that_of_both_parts_of_keys(
    n: int, heads: int, k_dim: int, v_dim: int, dtype: mx.Dtype
) -> None:
    """Of what a mask shows, by its name and as an array; of one query with and without."""
    random = iter(mx.random.split(mx.random.key(n), 4))

    def drawn(*shape: int) -> mx.array:
        return mx.random.normal(shape, key=next(random)).astype(dtype)

    q, r = drawn(2, heads, n, k_dim), drawn(2, heads, n, v_dim)
    found_of, rotary = drawn(2, 1, 60, k_dim), drawn(2, 1, 60, v_dim)
    scale = (k_dim + v_dim) ** -0.5
    k = mx.concatenate([found_of, rotary], axis=-1).astype(mx.float32)
    exact = plain_attention(mx.concatenate([q, r], axis=-1), k, found_of.astype(mx.float32), scale)
    seen = mx.arange(60 - n, 60)[:, None] >= mx.arange(60)
    for mask in ("causal", seen, mx.broadcast_to(seen, (2, 1, n, 60)), *([None] if n == 1 else [])):
        found = over_arrays(q, r, found_of, rotary, scale, mask).astype(mx.float32)
        assert (mx.abs(found - exact).max() / mx.abs(exact).max() < ROUNDING[dtype]).item()


@pytest.mark.slow
@pytest.mark.parametrize("shape", OF_16_BITS)
def test_one_query_of_the_kernel_is_right(shape: Geometry, on_cuda: None) -> None:
    assert one_query_error(shape) < ROUNDING[shape.dtype]
    assert unpacking_error(shape) < ROUNDING[shape.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("v_dim", [32, 64])
def test_a_few_queries_of_the_kernel_are_right(v_dim: int, on_cuda: None) -> None:
    shape = latents(heads=5, k_dim=96, v_dim=v_dim, group=32)
    assert few_queries_error(shape) < ROUNDING[shape.dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "scheme"), [*((bits, ROTATED) for bits in PAIRS), (PAIRS[0], PLAIN)])
def test_the_kernel_reads_all_bits(bits: tuple[int, int], scheme: str, on_cuda: None) -> None:
    assert few_queries_error(with_bits(latents(heads=1), *bits, scheme)) < 5e-3


@pytest.mark.slow
def test_what_is_right_is_taken_and_reported(on_cuda: None) -> None:
    reports, kernels = attention_paths(latents())
    assert [(report.phase, report.path) for report in reports] == [
        ("prefill", "unpacked"),
        ("prefill", "packed"),
        ("decode", "packed"),
    ]
    assert (kernels.one, kernels.few) == (True, True)


@pytest.mark.slow
def test_where_the_kernel_is_not_right_latents_are_unpacked(on_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = attention.flash_latents
    monkeypatch.setattr(attention, "flash_latents", lambda *of: original(*of) - of[6].k_mean)
    reports, kernels = attention_paths(latents())
    assert [(report.phase, report.path) for report in reports] == [("prefill", "unpacked"), ("decode", "unpacked")]
    assert "one query differs" in reports[-1].note and "a few queries differs" in reports[-1].note
    assert (kernels.one, kernels.few) == (False, False)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [latents(dtype=mx.float32), latents(heads=2, k_dim=1024, dtype=mx.bfloat16)])
def test_what_the_kernel_does_not_know_is_refused(shape: Geometry, on_cuda: None) -> None:
    with pytest.raises(ValueError, match="flash attention"):
        one_query_error(shape)
