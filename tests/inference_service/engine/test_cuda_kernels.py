"""The kernels for NVIDIA GPUs over packed K and V in blocks, by the proof at load and beside it: right on such a GPU,
and their device code wherever g++ is.
"""

from typing import Any

import mlx.core as mx
import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention.chunks import joined
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import (
    ROUNDING,
    few_queries_error,
    many_queries_error,
    one_query_error,
    unpacking_error,
)
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged import attention, write_kernels
from inference_service.engine.paged.kernels import PagedGroup, Tables
from inference_service.engine.quantization import BALANCED, PLAIN, KVFormat, dequantize
from inference_service.models.proof import attention_paths
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU
from tests.inference_service.engine.geometries import NARROW, OF_16_BITS, PAIRS, SHAPES, geometry, random, with_bits
from tests.inference_service.engine.paged.test_kernels import FLOORS, Case, Pool, filled, truth

pytestmark = [pytest.mark.sampled(3), pytest.mark.usefixtures("kernels")]


needs_cuda = pytest.mark.skipif(not available(), reason="as many elements as real models have take a GPU")
on_gpus = [pytest.param(shape, marks=needs_cuda) for shape in OF_16_BITS]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW, *on_gpus])
def test_one_query_is_right(shape: Geometry) -> None:
    assert one_query_error(shape) < (1e-4 if shape.dtype == mx.float32 else 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*NARROW, *on_gpus])
def test_a_few_queries_are_right(shape: Geometry) -> None:
    assert few_queries_error(shape) < 3e-2


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW, *on_gpus])
def test_unpacking_is_right(shape: Geometry) -> None:
    assert unpacking_error(shape) < ROUNDING[shape.dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_bits_of_k_and_v_apart_are_right(k: int, v: int) -> None:
    for widths in ((64, 64), (96, 32)):
        shape = with_bits(geometry(k_dim=widths[0], v_dim=widths[1]), k, v)
        assert one_query_error(shape) < 1e-4
        assert unpacking_error(shape) < 1e-4
    shape = with_bits(geometry(v_dim=128, dtype=mx.float16), k, v)
    assert few_queries_error(shape) < 5e-3


@pytest.mark.slow
def test_the_scheme_that_does_not_rotate_is_right() -> None:
    shape = with_bits(geometry(), 5, 4, PLAIN)
    assert one_query_error(shape) < 1e-4
    assert unpacking_error(shape) < 1e-4
    assert few_queries_error(with_bits(geometry(dtype=mx.float16), 5, 4, PLAIN)) < 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_bases_of_heads_are_right(dtype: mx.Dtype) -> None:
    """Beside kernels, and within them in 16 bits; also with windows and sinks."""
    most = ROUNDING[dtype]
    for shape, k in ((geometry(dtype=dtype), 4), (geometry(k_dim=96, v_dim=32, heads=6, window=40, dtype=dtype), 5)):
        balanced = with_bits(shape, k, 4, BALANCED)
        assert one_query_error(balanced) < most
        assert unpacking_error(balanced) < most
        assert many_queries_error(balanced) < most
    if dtype == mx.float16:
        assert few_queries_error(with_bits(geometry(v_dim=128, dtype=dtype), 5, 4, BALANCED)) < most


@pytest.mark.slow
@pytest.mark.parametrize(("left_out", "test"), [("queries", many_queries_error), ("unbalanced", unpacking_error)])
def test_a_basis_that_is_left_out_is_found(left_out: str, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCodec, left_out, lambda _, *arrays: arrays if len(arrays) > 1 else arrays[0])
    with pytest.raises(FailedPrecondition, match="wrong on this backend"):
        test(with_bits(geometry(), 4, 4, BALANCED))


@needs_cuda
@pytest.mark.parametrize("shape", [*OF_16_BITS, geometry(dtype=mx.bfloat16, bits=8, window=3)])
def test_both_kernels_are_taken_for_real_models(shape: Geometry) -> None:
    _, taken = attention_paths(shape)
    assert (taken.one, taken.few) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("n", "tokens"),
    [
        (2, 2),
        (3, 65),
        (33, 300),
        *(pytest.param(*of, marks=needs_cuda) for of in ((50, 4111), (200, 1000), (511, 513))),
    ],
)
@pytest.mark.parametrize(("heads", "kv_heads", "rows"), [(8, 2, 1), (7, 1, 1), (4, 4, 2)])
def test_a_few_queries_of_any_number(
    dtype: mx.Dtype, n: int, tokens: int, heads: int, kv_heads: int, rows: int
) -> None:
    """Blocks of rows that are full or not, one chunk of tokens and many; rows of several lengths."""
    case = Case(kv_heads, heads, dtype=dtype, group=64, scheme=PLAIN)
    lengths = [tokens + 21 * row for row in range(rows)]
    pool, codec = Pool(*case.made(), rows, -(-lengths[-1] // 64)), case.codec(centred=False)
    _, written = filled(pool, case, lengths, codec)
    queries = random(rows, heads, n, 64, dtype=dtype, seed=3)
    tables = pool.tables(list(range(rows)), [0] * rows, lengths)
    found = attention.flash_prefill(pool.group, pool.layer, queries, tables, codec, 0.125, None, written).astype(
        mx.float32
    )
    exact = mx.concatenate([rounded(pool, row, lengths[row], queries[row : row + 1]) for row in range(rows)])
    assert (mx.abs(found - exact).max() / mx.abs(exact).max() < ROUNDING[dtype]).item()


def rounded(pool: Pool, row: int, tokens: int, queries: mx.array) -> mx.array:
    """Attention over values that are rounded once to the type of the scales, as the kernel does it."""
    by, dtype = pool.group.format, pool.group.dtype
    k, v = (
        dequantize(side._replace(scales=side.scales.astype(mx.float32), biases=side.biases.astype(mx.float32)), how)
        .astype(dtype)
        .astype(mx.float32)
        for side, how in zip(pool.written(row, tokens), (by.k, by.v), strict=True)
    )
    return plain_attention(queries, k, v, 0.125)


def test_scores_of_real_models_are_not_rounded() -> None:
    """Up to 50, where bfloat16 has steps of a quarter: what of them decides must come out as of float32."""
    case = Case(4, 4, dtype=mx.bfloat16, group=64, scheme=PLAIN)
    pool, codec = Pool(*case.made(), 1, 1), case.codec(centred=False)
    _, written = filled(pool, case, [40], codec)
    queries = random(1, 4, 20, 64, dtype=mx.bfloat16, seed=3) * 12
    tables = pool.tables([0], [0], [40])
    found = attention.flash_prefill(pool.group, pool.layer, queries, tables, codec, 0.125, None, written)
    exact = rounded(pool, 0, 40, queries)
    assert (mx.abs(found.astype(mx.float32) - exact).max() / mx.abs(exact).max() < 0.01).item()


@pytest.mark.slow
def test_widths_that_do_not_fill_groups() -> None:
    """Queries of 80 over K of 96: outputs are as wide as packed V, and what fills it up is cut off later."""
    case = Case(4, 4, 96, 96, bits=(5, 3))
    means = tuple(random(4, 80, seed=seed) for seed in (8, 9))
    codec, pool = KVCodec(case.made()[0].format, (means[0], means[1])), Pool(*case.made(), 2, 2)
    k, v = (random(2, 4, 70, 80, seed=seed) for seed in (1, 2))
    tables = pool.tables([0, 1], [0, 0], [70, 70])
    written = write_kernels.write(pool.group, pool.layer, k, v, tables, FLOORS, codec)
    queries = random(2, 4, 1, 80, seed=3)
    found = attention.flash_decoding(pool.group, pool.layer, queries, tables, codec, 0.1, None, written)
    assert found.shape == (2, 4, 1, 96)
    wide = mx.pad(queries, [(0, 0), (0, 0), (0, 0), (0, 16)])
    for row in range(2):
        exact = truth(pool.written(row, 70), case, wide[row : row + 1], codec, None, 0.1)
        assert mx.allclose(found[row], exact[0], atol=1e-4)


@pytest.mark.slow
def test_what_is_left_out_of_a_kernel_shows(cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the mean of V."""
    if available():
        pytest.skip("of kernels as g++ compiles them")
    left_out, changes = "if (mean != nullptr) x += total * own_mean;", []

    def changed(*, header: str, **others: object) -> object:
        changes.append(left_out in header)
        return cuda_on_cpu(header=header.replace(left_out, ""), **others)  # type: ignore[arg-type]

    monkeypatch.setattr(mx.fast, "cuda_kernel", changed)
    with pytest.raises(FailedPrecondition, match="differs"):
        one_query_error(geometry())
    assert any(changes)


def paged(k_dim: int, bits: int = 4, dtype: mx.Dtype = mx.bfloat16) -> PagedGroup:
    return PagedGroup(2, k_dim, k_dim, KVFormat(bits, bits, 8), dtype, 64, (0,) * 6)


def nowhere(rows: int = 1) -> Tables:
    return Tables(mx.zeros((rows, 1), mx.int64), mx.zeros((rows, 2), mx.int32))


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
    group, queries, one = paged(k_dim, bits, dtype), mx.zeros((1, 2, 5, k_dim), dtype), mx.array([0])
    with pytest.raises(ValueError, match=words):
        attention.flash_prefill(group, one, queries, nowhere(), KVCodec(group.format), 1.0, None, one)


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
    group, one = paged(width, changed.get("bits", 4), mx.float32), mx.array([0])
    queries = mx.zeros((1, 2, changed.get("n", 1), width), dtype)
    with pytest.raises(ValueError, match=words):
        attention.flash_decoding(group, one, queries, nowhere(), KVCodec(group.format), 1.0, None, one)


def test_k_and_v_of_another_type_are_not_written() -> None:
    group, one, x = paged(64), mx.array([0]), mx.zeros((1, 2, 1, 64))
    with pytest.raises(ValueError, match=r"float32 .* for blocks of mlx.core.bfloat16"):
        write_kernels.write(group, one, x, x, nowhere(), FLOORS, KVCodec(group.format))


def test_means_of_another_type_are_refused() -> None:
    codec = KVCodec(means=(mx.zeros((1, 64)), mx.zeros((1, 64))))
    stats, partial = mx.zeros((1, 1, 1, 3, 2)), mx.zeros((1, 1, 1, 3, 64))
    with pytest.raises(ValueError, match="means of another type"):
        joined(stats, partial, mx.zeros((1, 1, 1, 64), mx.float16), 1.0, None, codec, codec.v_mean)
