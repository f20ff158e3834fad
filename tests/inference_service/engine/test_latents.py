"""Attention over arrays of latents. `paged.test_kernels` has that over blocks."""

import mlx.core as mx
import pytest

from inference_service.engine.attention.latents import over_arrays
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import ROUNDING
from tests.inference_service.engine.geometries import random as drawn

pytestmark = pytest.mark.sampled(3)


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
