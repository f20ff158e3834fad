"""Kernels for NVIDIA GPUs refuse what they do not know. `paged.test_kernels` has what they compute."""

from typing import Any

import mlx.core as mx
import pytest

from inference_service.engine.attention.chunks import joined
from inference_service.engine.codec import KVCodec
from inference_service.engine.paged import attention, write_kernels
from inference_service.engine.paged.kernels import LayerBlocks, PagedGroup, Tables
from inference_service.engine.quantization import KVFormat

pytestmark = pytest.mark.usefixtures("kernels")


def paged(k_dim: int, bits: int = 4, dtype: mx.Dtype = mx.bfloat16) -> PagedGroup:
    return PagedGroup(2, k_dim, k_dim, KVFormat(bits, bits, 8), dtype, 64, (0,) * 6)


def nowhere(group: PagedGroup) -> LayerBlocks:
    tables = Tables(mx.zeros((1, 1), mx.int64), mx.zeros((1, 2), mx.int32), mx.zeros(1, mx.int32))
    return LayerBlocks(group, mx.array([0]), KVCodec(group.format), tables)


@pytest.mark.parametrize(
    ("dtype", "k_dim", "bits", "words"),
    [
        (mx.float32, 64, 4, "float32 queries"),
        (mx.bfloat16, 72, 4, "widths 72"),
        (mx.bfloat16, 64, 2, "2 bits"),
        (mx.bfloat16, 512, 4, "does not fit"),
    ],
)
def test_what_the_kernel_for_a_few_queries_does_not_know(dtype: mx.Dtype, k_dim: int, bits: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention.flash_prefill(nowhere(paged(k_dim, bits, dtype)), mx.zeros((1, 2, 5, k_dim), dtype), 1.0, None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bits": 2}, "2/2 bits|2 bits"),
        ({"width": 520}, "widths 520"),
        ({"queries": mx.float16}, "queries of mlx.core.float16"),
        ({"n": 2}, "2 queries"),
    ],
)
def test_the_kernel_for_one_query_refuses_what_it_does_not_know(changed: dict[str, Any], words: str) -> None:
    width, dtype = changed.get("width", 64), changed.get("queries", mx.float32)
    group = paged(width, changed.get("bits", 4), mx.float32)
    queries = mx.zeros((1, 2, changed.get("n", 1), width), dtype)
    with pytest.raises(ValueError, match=words):
        attention.flash_decoding(nowhere(group), queries, 1.0, None)


def test_k_and_v_of_another_type_are_not_written() -> None:
    x = mx.zeros((1, 2, 1, 64))
    with pytest.raises(ValueError, match=r"float32 .* for blocks of mlx.core.bfloat16"):
        write_kernels.write(nowhere(paged(64)), x, x)


def test_means_of_another_type_are_refused() -> None:
    codec = KVCodec(means=(mx.zeros((1, 64)), mx.zeros((1, 64))))
    stats, partial = mx.zeros((1, 1, 1, 3, 2)), mx.zeros((1, 1, 1, 3, 64))
    with pytest.raises(ValueError, match="means of another type"):
        joined(stats, partial, mx.zeros((1, 1, 1, 64), mx.float16), 1.0, None, codec, codec.v_mean)
