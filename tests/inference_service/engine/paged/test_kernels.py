"""Kernels that write and read the pool's blocks: the self-test of loads for many geometries, and what it leaves out."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention import self_test
from inference_service.engine.attention.reference import random_codec
from inference_service.engine.attention.self_test import ROUNDING, Row, in_blocks
from inference_service.engine.codec import KVCodec
from inference_service.engine.device import on_cuda
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.arena import DeviceArena
from inference_service.engine.paged.kernels import LayerBlocks, PagedGroup, Tables
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.shares import Run, most_shares, shares
from inference_service.engine.quantization import BALANCED, PLAIN
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU
from tests.inference_service.engine.geometries import PAIRS, geometry, random

pytestmark = [pytest.mark.slow, pytest.mark.sampled(3)]

OF_16_BITS = [
    geometry(heads=2, k_dim=128, v_dim=128, dtype=mx.bfloat16, group=64),
    geometry(heads=2, k_dim=192, v_dim=128, dtype=mx.bfloat16, group=64),
    geometry(1, heads=1, k_dim=256, v_dim=256, dtype=mx.float16, group=64),
    geometry(1, heads=7, dtype=mx.float16, group=64),
    geometry(k_dim=96, v_dim=96, dtype=mx.bfloat16, window=40),
    geometry(dtype=mx.float16, window=50, heads=2, bits=(5, 3)),
    geometry(dtype=mx.bfloat16, v_dim=32, bits=(8, 6)),
    geometry(dtype=mx.float16, bits=(5, 4), scheme=PLAIN),
    geometry(dtype=mx.float16, scheme=BALANCED, v_dim=128, bits=(5, 4)),
    geometry(dtype=mx.float16, scheme=BALANCED, k_dim=96, v_dim=32, heads=6, window=40),
]
OF_32_BITS = [
    geometry(4), geometry(1, heads=2), geometry(window=3), geometry(window=70, heads=6),
    geometry(bits=(5, 4), scheme=PLAIN), geometry(scheme=BALANCED),
    geometry(scheme=BALANCED, k_dim=96, v_dim=32, heads=6, window=40, bits=(5, 4)),
    *(geometry(bits=pair) for pair in PAIRS), *(geometry(bits=pair, k_dim=96, v_dim=32) for pair in PAIRS),
]  # fmt: skip
needs_cuda = pytest.mark.skipif(not on_cuda(), reason="as many elements as real models have take a GPU")
latents = partial(geometry, 1, k_dim=128, latents=True)
LATENTS = [
    latents(dtype=mx.float16),
    latents(heads=16, k_dim=512, group=64, dtype=mx.bfloat16),
    latents(heads=5, k_dim=96, v_dim=32, dtype=mx.float16),
    *(latents(heads=1, bits=pair, dtype=mx.float16) for pair in PAIRS),
    latents(heads=1, bits=PAIRS[0], scheme=PLAIN, dtype=mx.float16),
]
REAL = [
    pytest.param(
        geometry(kv_heads, heads=heads, k_dim=k_dim, v_dim=v_dim, **{"dtype": mx.bfloat16, "group": 64, **other}),
        marks=needs_cuda,
    )
    for kv_heads, heads, k_dim, v_dim, other in (
        (8, 32, 128, 128, {}),  # Llama 3.1 8B
        (8, 32, 128, 128, {"scheme": BALANCED}),
        (8, 16, 256, 256, {"window": 512}),  # Gemma 3 12B
        (16, 16, 192, 128, {}),
        (8, 64, 64, 64, {"window": 128}),  # GPT-OSS
        (2, 14, 64, 64, {"dtype": mx.float16}),  # Qwen 2.5 0.5B
        (8, 32, 96, 96, {"dtype": mx.float16, "group": 32}),
    )
]


class Poisoned(DeviceArena):
    """Words that nobody has written are NaN."""

    def _taken(self, segment: int, words: mx.array) -> None:
        self._segments[segment] = mx.full(words.shape, 0xFFFFFFFF, dtype=mx.uint32)
        mx.eval(self._segments[segment])
        super()._taken(segment, self._segments[segment])


@pytest.fixture(autouse=True)
def poisoned(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "DeviceArena", Poisoned)
    if not on_cuda():
        monkeypatch.setattr(self_test, "_ONE", ((1, (260, 40)),))
        monkeypatch.setattr(self_test, "_FEW", ((20, (70,)), (3, (260, 40))))


def equal(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())


@pytest.mark.parametrize("made", [*OF_32_BITS, *OF_16_BITS, *LATENTS, *REAL])
def test_kernels_of_each_geometry_are_right(made: Geometry) -> None:
    self_test.packing_error(made)
    self_test.unpacking_error(made)
    self_test.one_query_error(made)
    if made.format.scheme == BALANCED:
        self_test.many_queries_error(made)
    if made.dtype != mx.float32:
        self_test.few_queries_error(made)


@pytest.mark.parametrize("made", [each for each in (*OF_16_BITS, *OF_32_BITS) if each.format.scheme == BALANCED])
def test_in_bases_only_rounding_is_lost(made: Geometry) -> None:
    """Kernels multiply otherwise than MLX, so some codes are others; the error is as large."""
    for group in made.groups:
        assert in_blocks(made, group, (150,), seed=1).off < 1.5


def cut(row: Row, picked: list[tuple[int, int]]) -> Row:
    """Return rows of these sequences, some of one, each without as many of its last tokens."""
    blocks, spans, floors = (part[mx.array([sequence for sequence, _ in picked])] for part in row.of.tables)
    tables = Tables(blocks, spans - mx.array([[0, less] for _, less in picked]), floors)
    kept = [(row.kv[at], row.values[at], slice(row.kv[at][0].shape[2] - less)) for at, less in picked]
    return row._replace(
        of=row.of._replace(tables=tables),
        kv=[(k[:, :, own], v[:, :, own]) for (k, v), _, own in kept],
        values=[(k[:, :, own], v[:, :, own]) for _, (k, v), own in kept],
        lengths=tuple(row.lengths[at] - less for at, less in picked),
    )


@pytest.mark.parametrize("made", [geometry(), *OF_16_BITS, *REAL])
@pytest.mark.parametrize("sunk", [False, True])
def test_rows_of_one_sequence_see_as_much_as_each_is_shown(made: Geometry, sunk: bool) -> None:
    for group in made.groups:
        row = in_blocks(made, group, (200, 64, 5), seed=1)
        several = cut(row, [(0, 0), (2, 0), (1, 0), (0, 1), (0, 59)])
        queries = random(5, made.heads, 1, group.k_dim, dtype=made.dtype, seed=3)
        sinks = random(made.heads, dtype=made.dtype, seed=4) if sunk else None
        found = self_test._one(several, queries, 0.125, sinks)
        assert several.error(found, queries, 0.125, sinks) < ROUNDING[made.dtype]


@pytest.mark.parametrize("made", [*OF_16_BITS, *REAL])
@pytest.mark.parametrize("sunk", [False, True])
def test_runs_of_different_lengths_are_right_in_one_call(made: Geometry, sunk: bool) -> None:
    counts = [37, 1, 5]
    runs = [Run(at, sum(counts[:at]), count) for at, count in enumerate(counts)]
    for group in made.groups:
        row, heads = in_blocks(made, group, (200, 90, 5), seed=1), made.heads // group.kv_heads
        queries = random(sum(counts), made.heads, 1, group.k_dim, dtype=made.dtype, seed=3)
        sinks = random(made.heads, dtype=made.dtype, seed=4) if sunk else None
        shared = mx.array(shares(runs, heads, count=most_shares(sum(counts), heads, 7)))
        found = attention.flash_runs(row.of, queries, shared, 0.125, sinks)
        for at, first, n in runs:
            own, mine = (each[first : first + n].swapaxes(0, 2) for each in (queries, found))
            assert row.only(at).error(mine, own, 0.125, sinks) < ROUNDING[made.dtype]


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
    dtype: mx.Dtype, n: int, tokens: int, heads: int, kv_heads: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_FEW", ((n, tuple(tokens + 21 * row for row in range(rows))),))
    self_test.few_queries_error(geometry(kv_heads, heads=heads, dtype=dtype, group=64, scheme=PLAIN))


def test_scores_of_real_models_are_not_rounded() -> None:
    """Up to 50, where bfloat16 has steps of a quarter: what of them decides must come out as of float32."""
    made = geometry(4, heads=4, dtype=mx.bfloat16, group=64, scheme=PLAIN)
    row = in_blocks(made, made.full, (40,), seed=1)
    queries = random(1, 4, 20, 64, dtype=mx.bfloat16, seed=3) * 12
    rounded = [tuple(side.astype(mx.bfloat16).astype(mx.float32) for side in kv) for kv in row.values]
    found = attention.flash_prefill(row.of, queries, 0.125, None)
    assert row._replace(values=rounded).error(found, queries, 0.125, None) < 0.01


@pytest.mark.parametrize("n", [1, 5])
def test_blocks_of_another_width_or_type_are_refused(n: int) -> None:
    for made in (latents(), latents(heads=2, k_dim=1024, dtype=mx.bfloat16)):
        row = in_blocks(made, made.full, (9,), seed=1)
        with pytest.raises(ValueError, match="flash attention"):
            self_test._latents(row, mx.zeros((1, made.heads, n, made.full.k_dim + 64), made.dtype), 1.0, None)


class Blocks:
    """Two sequences' blocks of 64 tokens, of a geometry's full attention."""

    def __init__(self, made: Geometry, codec: KVCodec) -> None:
        self.layout, self.dtype = BlockLayout(made.block_shapes(64)), made.dtype
        self.arena = Poisoned(self.layout, 7)
        self.numbers = [3, 1, 5], [4, 0, 2]
        self.prefixes = made.prefix(made.full)
        self._of = partial(LayerBlocks, PagedGroup.of(made, made.full, self.layout, 64), mx.array([1]), codec)

    def of(self, ends: list[int], floors: tuple[int, ...] = (0, 0)) -> LayerBlocks:
        blocks = mx.array(np.stack([self.arena.addresses(each) for each in self.numbers]))
        spans = mx.array([[0, end] for end in ends], dtype=mx.int32)
        return self._of(Tables(blocks, spans, mx.array(floors, dtype=mx.int32)))

    def bits(self, row: int) -> list[np.ndarray]:
        """Return packed K and V [kv_heads, tokens, bytes] of the written layer."""
        found = self.arena.arrays(self.numbers[row], 3 * 64)
        return [np.ascontiguousarray(each[1]).view(np.uint8) for each in found.values()]


@pytest.mark.parametrize(
    "made", [geometry(), geometry(1, bits=(5, 3)), OF_16_BITS[6], geometry(k_dim=96, dtype=mx.float16)]
)
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_written_is_what_would_be_packed(made: Geometry, centred: bool) -> None:
    full = made.full
    means = tuple(random(full.kv_heads, dim, dtype=made.dtype, seed=8) for dim in (full.k_dim, full.v_dim))
    codec = random_codec(made.format, means, 7) if centred else KVCodec(made.format)
    blocks = Blocks(made, codec)
    k = random(2, 128, full.kv_heads, full.k_dim, dtype=made.dtype).swapaxes(1, 2)
    v = random(2, full.kv_heads, 128, full.v_dim, dtype=made.dtype, seed=1)
    for new, ends in ((slice(40), [40, 120]), (slice(40, 50), [50, 130])):
        mx.eval(write_kernels.write(blocks.of(ends), k[:, :, new], v[:, :, new]))
    packed = [np.array(part.view(mx.uint8)) for side in codec.encode(k, v) for part in side]
    for row, (start, end) in enumerate(((0, 50), (80, 130))):
        for found, wanted in zip(blocks.bits(row), packed, strict=True):
            assert (found[:, start:end] == wanted[row, :, :50]).all()
            assert (found[:, :start] == 0xFF).all() and (found[:, end:] == 0xFF).all()


def test_what_others_have_is_not_written() -> None:
    made = geometry()
    blocks = Blocks(made, KVCodec(made.format))
    k = random(2, 2, 20, 64)
    mx.eval(write_kernels.write(blocks.of([20, 20], floors=(7, 20)), k, k))
    for row, floor in enumerate((7, 20)):
        assert (blocks.bits(row)[0][0, :20] == 0xFF).all(axis=1).sum() == floor


def test_what_is_after_the_end_is_read_as_zeros() -> None:
    made = geometry()
    row = in_blocks(made, made.full, (150, 70), seed=1)
    beyond = kernels.decoded(row.of, mx.array([140, 60]), 20)
    assert not mx.any(mx.stack([x[:, :, 10:].abs().max() for x in beyond])).item()


def test_widths_that_do_not_fill_groups() -> None:
    """Queries of 80 over K of 96: outputs are as wide as packed V, and what fills it up is cut off later."""
    made = geometry(4, 96, k_dim=96, bits=(5, 3))
    means = tuple(random(4, 80, seed=seed) for seed in (8, 9))
    row = in_blocks(made, made.full, (70, 70), seed=1)
    k, v = (random(2, 4, 70, 80, seed=seed) for seed in (1, 2))
    of = row.of._replace(codec=KVCodec(made.format, (means[0], means[1])))
    of = of._replace(written=write_kernels.write(of, k, v))
    queries = random(2, 4, 1, 80, seed=3)
    found = attention.flash_decoding(of, queries, 0.125, None)
    assert found.shape == (2, 4, 1, 96)
    k, v = kernels.decoded(of, mx.array([0, 0]), 70)
    wide = mx.pad(queries, [(0, 0), (0, 0), (0, 0), (0, 16)])
    filled = tuple(mx.pad(mean, [(0, 0), (0, 16)]) for mean in means)
    read = row._replace(of=of, values=[(k[at : at + 1], v[at : at + 1]) for at in range(2)], means=filled)
    assert read.error(found, wide, 0.125, None) < ROUNDING[mx.float32]


def test_what_is_left_out_of_a_kernel_shows(cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch) -> None:
    if on_cuda():
        pytest.skip("of kernels as g++ compiles them")
    left_out, changes = "if (mean != nullptr) x += total * own_mean;", []

    def changed(*, header: str, **others: object) -> object:
        changes.append(left_out in header)
        return cuda_on_cpu(header=header.replace(left_out, ""), **others)  # type: ignore[arg-type]

    monkeypatch.setattr(mx.fast, "cuda_kernel", changed)
    with pytest.raises(FailedPrecondition, match="one query differs"):
        self_test.one_query_error(geometry())
    assert any(changes)


@pytest.mark.parametrize("fault", ["queries", "unbalanced"])
def test_a_basis_that_is_left_out_shows(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCodec, fault, lambda _, *arrays: arrays if len(arrays) > 1 else arrays[0])
    test = {"queries": self_test.many_queries_error, "unbalanced": self_test.unpacking_error}[fault]
    with pytest.raises(FailedPrecondition, match="on this backend"):
        test(geometry(scheme=BALANCED))


def test_blocks_are_copied() -> None:
    made = geometry()
    arena = Blocks(made, KVCodec(made.format)).arena
    words = mx.arange(2 * arena.layout.words, dtype=mx.uint32).reshape(2, -1)
    addresses = mx.array(arena.addresses([3, 1]))
    mx.eval(kernels.store(words, addresses))
    assert equal(kernels.load(addresses, arena.layout.words), words)
    others = kernels.load(mx.array(arena.addresses([0, 2, 4])), arena.layout.words)
    assert (np.array(others) == 0xFFFFFFFF).all()
