"""Attention over latents is right: over arrays, and by the kernel over packed ones in blocks."""

import mlx.core as mx
import pytest

from inference_service.engine.attention.latents import over_arrays
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import ROUNDING
from inference_service.engine.paged import attention
from inference_service.engine.quantization import PLAIN
from tests.inference_service.engine.geometries import PAIRS
from tests.inference_service.engine.geometries import random as drawn
from tests.inference_service.engine.paged.blocks_of_kernels import Case, Filled, off

pytestmark = pytest.mark.sampled(3)

LATENTS = Case(kv_heads=1, k_dim=128, dtype=mx.float16)
CASES = [
    LATENTS,
    LATENTS._replace(heads=16, k_dim=512, group=64, dtype=mx.bfloat16),
    LATENTS._replace(heads=5, k_dim=96, v_dim=32),
    *(LATENTS._replace(heads=1, bits=pair) for pair in PAIRS),
    LATENTS._replace(heads=1, bits=PAIRS[0], scheme=PLAIN),
]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("heads", "k_dim", "v_dim"), [(4, 128, 64), (16, 512, 64), (3, 96, 32)])
@pytest.mark.parametrize("n", [1, 5])
def test_over_arrays_it_is_that_of_both_parts_of_keys(
    n: int, heads: int, k_dim: int, v_dim: int, dtype: mx.Dtype
) -> None:
    q, r = (drawn(2, heads, n, width, dtype=dtype, seed=width) for width in (k_dim, v_dim))
    found_of, rotary = (drawn(2, 1, 60, width, dtype=dtype, seed=1 + width) for width in (k_dim, v_dim))
    scale = (k_dim + v_dim) ** -0.5
    k = mx.concatenate([found_of, rotary], axis=-1).astype(mx.float32)
    exact = plain_attention(mx.concatenate([q, r], axis=-1), k, found_of.astype(mx.float32), scale)
    seen = mx.arange(60 - n, 60)[:, None] >= mx.arange(60)
    for mask in ("causal", seen, mx.broadcast_to(seen, (2, 1, n, 60)), *([None] if n == 1 else [])):
        found = over_arrays(q, r, found_of, rotary, scale, mask).astype(mx.float32)
        assert (mx.abs(found - exact).max() / mx.abs(exact).max() < ROUNDING[dtype]).item()


def by_kernel(made: Filled, queries: mx.array, rotary: mx.array, lengths: list[int]) -> mx.array:
    return attention.flash_latents(made.of(list(range(len(lengths))), lengths), queries, rotary, max(lengths), 0.125)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_over_latents_in_blocks_is_right(case: Case) -> None:
    for n, lengths in ((1, [90, 260, 40]), (20, [70]), (3, [260, 40])):
        made = Filled(case, lengths, case.codec(k_mean=0.125))
        q = drawn(len(lengths), case.heads, n, case.k_dim, dtype=case.dtype, seed=3)
        r = drawn(len(lengths), case.heads, n, case.v_dim, dtype=case.dtype, seed=4)
        found = by_kernel(made, q, r, lengths)
        for row, length in enumerate(lengths):
            k, rotary = made.values(row, length)
            own = slice(row, row + 1)
            both = mx.concatenate([q[own], r[own]], axis=-1), mx.concatenate([k, rotary], axis=-1)
            exact, mean = plain_attention(*both, k, 0.125), made.codec.k_mean
            error = off(found[own], exact, 0.0 if mean is None else mean.astype(mx.float32))
            assert error < ROUNDING[case.dtype], (n, row)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "case", [LATENTS._replace(dtype=mx.float32), LATENTS._replace(heads=2, k_dim=1024, dtype=mx.bfloat16)]
)
def test_what_the_kernel_does_not_know_is_refused(case: Case) -> None:
    made, q = Filled(case, [9]), mx.zeros((1, case.heads, 1, case.k_dim), case.dtype)
    with pytest.raises(ValueError, match="flash attention"):
        by_kernel(made, q, mx.zeros((1, case.heads, 1, case.v_dim), case.dtype), [9])
