"""Kernels that write and read the pool's blocks, beside attention over the same values as arrays."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import ROUNDING
from inference_service.engine.codec import KVCodec
from inference_service.engine.cuda_kernel import available
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.passes import banded
from inference_service.engine.paged.shares import Run, most_shares, shares
from inference_service.engine.quantization import BALANCED, PLAIN, dequantize
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU
from tests.inference_service.engine.geometries import PAIRS, random
from tests.inference_service.engine.paged.blocks_of_kernels import BLOCK, Case, Filled, Pool, off

pytestmark = [pytest.mark.slow, pytest.mark.sampled(3), pytest.mark.usefixtures("kernels")]

CASES = [
    Case(),
    Case(bits=(5, 3), kv_heads=1),
    Case(bits=(8, 6), v_dim=32, dtype=mx.bfloat16),
    Case(k_dim=96, v_dim=96, group=32, dtype=mx.float16, heads=2),
]
OF_16_BITS = [
    Case(heads=2, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64),
    Case(heads=2, k_dim=192, v_dim=128, dtype=mx.bfloat16, group=64),
    Case(heads=1, kv_heads=1, k_dim=256, v_dim=256, dtype=mx.float16, group=64),
    Case(heads=7, kv_heads=1, dtype=mx.float16, group=64),
    Case(k_dim=96, v_dim=96, dtype=mx.bfloat16, window=40),
    Case(dtype=mx.float16, window=50, heads=2, bits=(5, 3)),
    Case(dtype=mx.float16, bits=(5, 4), scheme=PLAIN),
    Case(dtype=mx.float16, scheme=BALANCED, v_dim=128, bits=(5, 4)),
    Case(dtype=mx.float16, scheme=BALANCED, k_dim=96, v_dim=32, heads=6, window=40),
]
OF_32_BITS = [
    Case(kv_heads=1), Case(kv_heads=4), Case(v_dim=32), Case(bits=(8, 8)), Case(window=3), Case(window=20),
    Case(window=70, heads=6), Case(heads=2, kv_heads=1), Case(bits=(5, 4), scheme=PLAIN), Case(scheme=BALANCED),
    Case(scheme=BALANCED, k_dim=96, v_dim=32, heads=6, window=40, bits=(5, 4)),
    *(Case(bits=pair) for pair in PAIRS), *(Case(bits=pair, k_dim=96, v_dim=32) for pair in PAIRS),
]  # fmt: skip
needs_cuda = pytest.mark.skipif(not available(), reason="as many elements as real models have take a GPU")
REAL = [
    pytest.param(case, marks=needs_cuda)
    for case in (
        Case(kv_heads=8, heads=32, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64),  # Llama 3.1 8B
        Case(kv_heads=8, heads=16, k_dim=256, v_dim=256, dtype=mx.bfloat16, group=64, window=512),  # Gemma 3 12B
        Case(kv_heads=16, heads=16, k_dim=192, v_dim=128, dtype=mx.bfloat16, group=64),
        Case(kv_heads=8, heads=64, dtype=mx.bfloat16, group=64, window=128),  # GPT-OSS
        Case(kv_heads=2, heads=14, dtype=mx.float16, group=64),  # Qwen 2.5 0.5B
        Case(kv_heads=8, heads=32, k_dim=96, v_dim=96, dtype=mx.float16),
        Case(kv_heads=8, heads=32, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64, scheme=BALANCED),
    )
]


def equal(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_written_is_what_would_be_packed(case: Case, centred: bool) -> None:
    pool, codec = Pool(case, 2, 3), case.codec(centred=centred)
    k = random(2, 2 * BLOCK, case.kv_heads, case.k_dim, dtype=case.dtype).swapaxes(1, 2)
    v = random(2, case.kv_heads, 2 * BLOCK, case.v_dim, dtype=case.dtype, seed=1)
    packed = codec.encode(k, v)
    for new, ends in ((slice(40), [40, 120]), (slice(40, 50), [50, 130])):
        mx.eval(write_kernels.write(pool.of(codec, pool.tables([0, 1], ends)), k[:, :, new], v[:, :, new]))
    for row, (start, end) in enumerate(((0, 50), (80, 130))):
        for found, wanted in zip(pool.written(row, 3 * BLOCK), packed, strict=True):
            for mine, whole in zip(found, wanted, strict=True):
                assert equal(mine[:, :, start:end].view(mx.uint8), whole[row : row + 1, :, :50].view(mx.uint8))
                untouched = np.array(mx.concatenate([mine[:, :, :start], mine[:, :, end:]], axis=2).view(mx.uint8))
                assert (untouched == 0xFF).all()
    assert (pool.view()[-1] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("case", [case for case in (*OF_16_BITS, *OF_32_BITS) if case.scheme == BALANCED])
def test_in_bases_only_rounding_is_lost(case: Case) -> None:
    """Kernels multiply otherwise than MLX, so some codes are others; the error is as large."""
    made = Filled(case, [150])
    errors = []
    for x, packed, found in zip(
        made.kv[0], made.codec.decode(*made.codec.encode(*made.kv[0])), made.values(0, 150), strict=True
    ):
        lost = [mx.square(x.astype(mx.float32) - each).mean().sqrt() for each in (found, packed)]
        errors.append((lost[0] / lost[1]).item())
    assert max(errors) < 1.5


@pytest.mark.parametrize("case", [*CASES, *OF_16_BITS, *OF_32_BITS, *REAL])
def test_what_is_read_as_arrays_is_what_the_codec_makes_of_it(case: Case) -> None:
    made = Filled(case, [150, 70])
    of = made.of([1, 0], [70, 150], [0, BLOCK])
    found = kernels.decoded(of, mx.array([10, 90]), 60)
    for row, (sequence, begin, end) in enumerate(((1, 10, 70), (0, 90, 150))):
        for mine, wanted in zip(found, made.values(sequence, end), strict=True):
            assert off(mine[row], wanted[0, :, begin:end]) < ROUNDING[case.dtype]
    if case.scheme != BALANCED:  # which adds means afterwards
        beyond = kernels.decoded(of, mx.array([60, 140]), 20)
        assert not mx.any(mx.stack([x[:, :, 10:].abs().max() for x in beyond])).item()


@pytest.mark.parametrize("case", [*CASES, *OF_16_BITS, *OF_32_BITS, *REAL])
@pytest.mark.parametrize("sunk", [False, True])
def test_one_query_of_each_row_is_right(case: Case, sunk: bool) -> None:
    made = Filled(case, [200, 64, 5])
    rows, ends = [0, 2, 1, 0, 0], [200, 5, 64, 199, 130]
    of = made.of(rows, ends, (max(0, end - (case.window or end)) for end in ends))
    queries = random(len(rows), case.heads, 1, case.k_dim, dtype=case.dtype, seed=3)
    sinks = random(case.heads, dtype=case.dtype, seed=4) if sunk else None
    of, packed = made.with_queries(of, rows, ends, queries)
    found = attention.flash_decoding(of, queries, 0.125, sinks, packed)
    for at, (row, end) in enumerate(zip(rows, ends, strict=True)):
        assert made.right(found[at : at + 1], row, end, queries[at : at + 1], sinks), (at, end)


@pytest.mark.parametrize("case", [*(case for case in CASES if case.dtype != mx.float32), *OF_16_BITS, *REAL])
@pytest.mark.parametrize("sunk", [False, True])
def test_runs_of_different_lengths_are_right_in_one_call(case: Case, sunk: bool) -> None:
    made = Filled(case, [200, 90, 5])
    lengths, counts = [200, 90, 5], [37, 1, 5]
    of = made.of(
        [0, 1, 2], lengths, (max(0, n - count - (case.window or n)) for n, count in zip(lengths, counts, strict=True))
    )
    queries = random(sum(counts), case.heads, 1, case.k_dim, dtype=case.dtype, seed=3)
    sinks = random(case.heads, dtype=case.dtype, seed=4) if sunk else None
    runs = [Run(at, sum(counts[:at]), count) for at, count in enumerate(counts)]
    heads = case.heads // case.kv_heads
    shared = mx.array(shares(runs, heads, count=most_shares(sum(counts), heads, 7)))
    found = attention.flash_runs(of, queries, shared, 0.125, sinks)
    for row, first, n in runs:
        own = queries[first : first + n].swapaxes(0, 2)
        assert made.right(found[first : first + n].swapaxes(0, 2), row, lengths[row], own, sinks), row


@pytest.mark.parametrize("case", [case for case in (*OF_16_BITS, *OF_32_BITS) if case.scheme == BALANCED])
@pytest.mark.parametrize("sunk", [False, True])
def test_many_queries_over_arrays_in_the_packed_basis_are_right(case: Case, sunk: bool) -> None:
    made, n, length = Filled(case, [200]), 30, 200
    total = min(length, case.window + n - 1) if case.window else length
    queries = random(1, case.heads, n, case.k_dim, dtype=case.dtype, seed=3)
    sinks = random(case.heads, dtype=case.dtype, seed=4) if sunk else None
    mask: Any = "causal" if not case.window else banded(n, total, case.window)
    of, packed = made.with_queries(made.of([0], [length]), [0], [length], queries)
    found = attention.over_arrays(of, queries, total, mask, 0.125, sinks, packed)
    assert made.right(found, 0, length, queries, sinks)


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
    case = Case(kv_heads, heads, dtype=dtype, group=64, scheme=PLAIN)
    lengths = [tokens + 21 * row for row in range(rows)]
    made = Filled(case, lengths, case.codec(centred=False))
    queries = random(rows, heads, n, 64, dtype=dtype, seed=3)
    found = attention.flash_prefill(made.of(list(range(rows)), lengths), queries, 0.125, None)
    exact = mx.concatenate([rounded(made, row, lengths[row], queries[row : row + 1]) for row in range(rows)])
    assert off(found, exact) < ROUNDING[dtype]


def rounded(made: Filled, row: int, tokens: int, queries: mx.array) -> mx.array:
    """Attention over values that are rounded once to the type of the scales, as the kernel does it."""
    by, dtype = made.pool.group.format, made.pool.group.dtype
    k, v = (
        dequantize(side._replace(scales=side.scales.astype(mx.float32), biases=side.biases.astype(mx.float32)), how)
        .astype(dtype)
        .astype(mx.float32)
        for side, how in zip(made.pool.written(row, tokens), (by.k, by.v), strict=True)
    )
    return plain_attention(queries, k, v, 0.125)


def test_scores_of_real_models_are_not_rounded() -> None:
    """Up to 50, where bfloat16 has steps of a quarter: what of them decides must come out as of float32."""
    case = Case(4, 4, dtype=mx.bfloat16, group=64, scheme=PLAIN)
    made = Filled(case, [40], case.codec(centred=False))
    queries = random(1, 4, 20, 64, dtype=mx.bfloat16, seed=3) * 12
    found = attention.flash_prefill(made.of([0], [40]), queries, 0.125, None)
    assert off(found, rounded(made, 0, 40, queries)) < 0.01


def test_widths_that_do_not_fill_groups() -> None:
    """Queries of 80 over K of 96: outputs are as wide as packed V, and what fills it up is cut off later."""
    case = Case(4, 4, 96, 96, bits=(5, 3))
    means = tuple(random(4, 80, seed=seed) for seed in (8, 9))
    made = Filled(case, [70, 70], KVCodec(case.made()[0].format, (means[0], means[1])))
    k, v = (random(2, 4, 70, 80, seed=seed) for seed in (1, 2))
    of = made.of([0, 1], [70, 70])
    of = of._replace(written=write_kernels.write(of, k, v))
    queries = random(2, 4, 1, 80, seed=3)
    found = attention.flash_decoding(of, queries, 0.125, None)
    assert found.shape == (2, 4, 1, 96)
    wide = mx.pad(queries, [(0, 0), (0, 0), (0, 0), (0, 16)])
    assert all(made.right(found[row : row + 1], row, 70, wide[row : row + 1]) for row in range(2))


def test_what_is_left_out_of_a_kernel_shows(cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch) -> None:
    if available():
        pytest.skip("of kernels as g++ compiles them")
    left_out, changes = "if (mean != nullptr) x += total * own_mean;", []

    def changed(*, header: str, **others: object) -> object:
        changes.append(left_out in header)
        return cuda_on_cpu(header=header.replace(left_out, ""), **others)  # type: ignore[arg-type]

    monkeypatch.setattr(mx.fast, "cuda_kernel", changed)
    with pytest.raises(AssertionError):
        test_one_query_of_each_row_is_right(Case(), sunk=False)
    assert any(changes)


@pytest.mark.parametrize("left_out", ["queries", "unbalanced"])
def test_a_basis_that_is_left_out_shows(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCodec, left_out, lambda _, *arrays: arrays if len(arrays) > 1 else arrays[0])
    test: Any = {
        "queries": test_many_queries_over_arrays_in_the_packed_basis_are_right,
        "unbalanced": test_what_is_read_as_arrays_is_what_the_codec_makes_of_it,
    }[left_out]
    with pytest.raises(AssertionError):
        test(Case(scheme=BALANCED), **{"sunk": False} if left_out == "queries" else {})


def test_what_others_have_is_not_written() -> None:
    case = CASES[0]
    pool, codec = Pool(case, 2, 2), case.codec()
    k = random(2, case.kv_heads, 20, case.k_dim)
    mx.eval(write_kernels.write(pool.of(codec, pool.tables([0, 1], [20, 20], floors=(7, 20))), k, k))
    for row, floor in enumerate((7, 20)):
        words = np.array(pool.written(row, 20)[0].weights)[0, 0]
        assert (words == 0xFFFFFFFF).all(axis=1).sum() == floor


def test_blocks_are_copied() -> None:
    pool = Pool(Case(), 2, 2)
    words = mx.arange(2 * pool.layout.words, dtype=mx.uint32).reshape(2, -1)
    addresses = pool.base + np.array([3, 1]) * pool.layout.nbytes
    mx.eval(kernels.store(words, mx.array(addresses.astype(np.int64))))
    assert equal(mx.array(pool.view()[[3, 1]]), words)
    assert (pool.view()[[0, 2, 4]] == 0xFFFFFFFF).all()
    assert equal(kernels.load(mx.array(addresses[::-1].astype(np.int64)), pool.layout.words), words[::-1])
