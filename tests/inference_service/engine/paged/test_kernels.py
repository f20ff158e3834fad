"""Kernels that write and read the pool's blocks, beside the same over arrays in one piece."""

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.attention import reference
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.kernels import PagedGroup, Tables
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.shares import Run, most_shares, shares
from inference_service.engine.quantization import KVFormat, Quantized
from tests.inference_service.engine.geometries import random

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernels")]

BLOCK = 64
LAYERS = (0, 2)
FLOORS = mx.zeros(8, mx.int32)
LAYER = 1
"""The layer's place in its group; another lies before it in a block."""


class Pool:
    """Blocks in memory, poisoned, for sequences whose blocks lie in no order."""

    def __init__(self, made: Geometry, group: LayerGroup, sequences: int, blocks: int, seed: int = 0) -> None:
        self.layout = BlockLayout(made.shapes(group, BLOCK))
        self.group = PagedGroup.of(made, group, self.layout, BLOCK)
        self.memory = mx.full((sequences * blocks + 1, self.layout.words), 0xFFFFFFFF, dtype=mx.uint32)
        mx.eval(self.memory)
        order = np.random.default_rng(seed).permutation(sequences * blocks)
        self.numbers = order.reshape(sequences, blocks)
        self.base = kernels.address(self.memory) if mx.cuda.is_available() else self.view().ctypes.data
        self.layer = mx.array([LAYER])

    def view(self) -> np.ndarray[Any, Any]:
        return np.array(self.memory, copy=False)

    def tables(self, rows: list[int], firsts: list[int], ends: list[int]) -> Tables:
        """Tables of rows of these sequences; each begins at the block that holds its position of `firsts`."""
        width = self.numbers.shape[1]
        found = np.full((len(rows), width), self.base + len(self.view()[:-1]) * self.layout.nbytes, np.int64)
        for at, (row, first) in enumerate(zip(rows, firsts, strict=True)):
            blocks = self.numbers[row, first // BLOCK :]
            found[at, : len(blocks)] = self.base + blocks * self.layout.nbytes
        return Tables(mx.array(found), mx.array(np.array([firsts, ends], np.int32).T.copy()))

    def written(self, row: int, tokens: int) -> tuple[Quantized, Quantized]:
        """Packed K and V of a sequence's first tokens, from its blocks, in one piece."""
        parts: dict[str, Any] = {}
        for number in self.numbers[row]:
            for name, view in self.layout.views(self.view()[number]).items():
                parts.setdefault(name, []).append(view[LAYER])
        arrays = []
        for name, found in parts.items():
            whole = mx.array(np.concatenate(found, axis=1)[None, :, :tokens])
            dtype = self.group.dtype
            arrays.append(whole if name.endswith("weights") or whole.dtype == dtype else whole.view(dtype))
        return Quantized(*arrays[:3]), Quantized(*arrays[3:])


class Case(NamedTuple):
    kv_heads: int = 2
    heads: int = 4
    k_dim: int = 64
    v_dim: int = 64
    dtype: mx.Dtype = mx.float32
    bits: tuple[int, int] = (4, 4)
    group: int = 32
    window: int = 0
    scheme: str = "rotated"

    def made(self) -> tuple[Geometry, LayerGroup]:
        full = LayerGroup(LAYERS, self.kv_heads, self.k_dim, self.v_dim, self.window or None)
        return Geometry(self.heads, self.dtype, KVFormat(*self.bits, self.group, self.scheme), full), full

    def codec(self, *, centred: bool = True) -> KVCodec:
        made, _ = self.made()
        means = (
            random(self.kv_heads, self.k_dim, dtype=self.dtype, seed=8),
            random(self.kv_heads, self.v_dim, dtype=self.dtype, seed=9),
        )
        return KVCodec(made.format, means if centred else None)


CASES = [
    Case(),
    Case(bits=(5, 3), kv_heads=1),
    Case(bits=(8, 6), v_dim=32, dtype=mx.bfloat16),
    Case(k_dim=96, v_dim=96, group=32, dtype=mx.float16, heads=2),
]


def equal(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_written_is_what_would_be_packed(case: Case, centred: bool) -> None:
    """Two rows, of which one goes on in the middle of a block and into the next; packed bits are equal."""
    pool, codec = Pool(*case.made(), 2, 3), case.codec(centred=centred)
    k = random(2, 2 * BLOCK, case.kv_heads, case.k_dim, dtype=case.dtype).swapaxes(1, 2)
    v = random(2, case.kv_heads, 2 * BLOCK, case.v_dim, dtype=case.dtype, seed=1)
    packed = codec.encode(k, v)
    for new, ends in ((slice(40), [40, 120]), (slice(40, 50), [50, 130])):
        tables = pool.tables([0, 1], [0, 0], ends)
        mx.eval(write_kernels.write(pool.group, pool.layer, k[:, :, new], v[:, :, new], tables, FLOORS, codec))
    for row, (start, end) in enumerate(((0, 50), (80, 130))):
        for found, wanted in zip(pool.written(row, 3 * BLOCK), packed, strict=True):
            for mine, whole in zip(found, wanted, strict=True):
                assert equal(mine[:, :, start:end].view(mx.uint8), whole[row : row + 1, :, :50].view(mx.uint8))
                untouched = np.array(mx.concatenate([mine[:, :, :start], mine[:, :, end:]], axis=2).view(mx.uint8))
                assert (untouched == 0xFF).all()
    assert (pool.view()[-1] == 0xFFFFFFFF).all()


def filled(pool: Pool, case: Case, lengths: list[int], codec: KVCodec) -> tuple[list[Any], mx.array]:
    """Sequences of these lengths; K and V of each, packed in one piece, and what says that they are written."""
    written, packed = mx.zeros(1, mx.int32), []
    for row, tokens in enumerate(lengths):
        k = random(1, case.kv_heads, tokens, case.k_dim, dtype=case.dtype, seed=20 + row)
        v = random(1, case.kv_heads, tokens, case.v_dim, dtype=case.dtype, seed=40 + row)
        packed.append(codec.encode(k, v))
        tables = pool.tables([row], [0], [tokens])
        written = write_kernels.write(pool.group, pool.layer, k, v, tables, FLOORS, codec)
        mx.eval(written)
    return packed, written


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_as_arrays_is_what_the_codec_makes_of_it(case: Case) -> None:
    pool, codec = Pool(*case.made(), 2, 3), case.codec()
    lengths = [150, 70]
    packed, written = filled(pool, case, lengths, codec)
    tables = pool.tables([1, 0], [0, BLOCK], [70, 150])
    found = kernels.decoded(pool.group, pool.layer, tables, mx.array([10, 90]), 60, codec, written)
    for row, (sequence, begin, end) in enumerate(((1, 10, 70), (0, 90, 150))):
        for mine, wanted in zip(found, values(packed[sequence], case, codec), strict=True):
            rounding = {mx.float32: 1e-5, mx.bfloat16: 8e-3, mx.float16: 1e-3}[case.dtype]
            assert mx.allclose(mine[row], wanted[0, :, begin:end], atol=rounding, rtol=rounding)
    beyond = kernels.decoded(pool.group, pool.layer, tables, mx.array([60, 140]), 20, codec, written)
    assert not mx.any(mx.stack([x[:, :, 10:].abs().max() for x in beyond])).item()


def values(packed: Any, case: Case, codec: KVCodec) -> list[mx.array]:
    """K and V for which these stand, float32."""
    by, means = case.made()[0].format, (codec.k_mean, codec.v_mean)
    exact = [Quantized(x.weights, x.scales.astype(mx.float32), x.biases.astype(mx.float32)) for x in packed]
    return [
        reference.plain_values(each, how, mean[:, 0], reference.out_of_rotation(each.scales.shape[-1] * how.group_size))  # type: ignore[index]
        for each, how, mean in zip(exact, (by.k, by.v), means, strict=True)
    ]


def truth(packed: Any, case: Case, queries: mx.array, codec: KVCodec, sinks: mx.array | None, scale: float) -> mx.array:
    k, v = values(packed, case, codec)
    return reference.plain_attention(queries, k, v, scale, case.window or None, sinks)


def near(found: mx.array, wanted: mx.array, dtype: mx.Dtype) -> bool:
    most = {mx.float32: 4e-4, mx.bfloat16: 0.1, mx.float16: 2e-2}[dtype]
    return bool((mx.abs(found.astype(mx.float32) - wanted).max() < most).item())


@pytest.mark.parametrize("case", [*CASES, Case(window=20), Case(window=70, heads=6), Case(heads=2, kv_heads=1)])
@pytest.mark.parametrize("sunk", [False, True])
def test_one_query_of_each_row_is_right(case: Case, sunk: bool) -> None:
    """Rows that end anywhere: in a first block, at the end of one, and some of one sequence."""
    pool, codec = Pool(*case.made(), 3, 4), case.codec()
    lengths = [200, 64, 5]
    packed, written = filled(pool, case, lengths, codec)
    rows, ends = [0, 2, 1, 0, 0], [200, 5, 64, 199, 130]
    firsts = [max(0, end - (case.window or end)) // BLOCK * BLOCK for end in ends]
    queries = random(len(rows), case.heads, 1, case.k_dim, dtype=case.dtype, seed=3)
    sinks = random(case.heads, dtype=case.dtype, seed=4) if sunk else None
    tables = pool.tables(rows, firsts, ends)
    found = attention.flash_decoding(pool.group, pool.layer, queries, tables, codec, 0.125, sinks, written)
    for at, (row, end) in enumerate(zip(rows, ends, strict=True)):
        seen = tuple(Quantized(*(part[:, :, :end] for part in side)) for side in packed[row])
        wanted = truth(seen, case, queries[at : at + 1], codec, sinks, 0.125)
        assert near(found[at], wanted[0], case.dtype), (at, end)


@pytest.mark.parametrize("case", [Case(dtype=mx.bfloat16), Case(dtype=mx.float16, window=50, heads=2, bits=(5, 3))])
@pytest.mark.parametrize("sunk", [False, True])
def test_runs_of_different_lengths_are_right_in_one_call(case: Case, sunk: bool) -> None:
    pool, codec = Pool(*case.made(), 3, 4), case.codec()
    lengths, counts = [200, 90, 5], [37, 1, 5]
    packed, written = filled(pool, case, lengths, codec)
    firsts = [max(0, n - count - (case.window or n)) // BLOCK * BLOCK for n, count in zip(lengths, counts, strict=True)]
    queries = random(sum(counts), case.heads, 1, case.k_dim, dtype=case.dtype, seed=3)
    sinks = random(case.heads, dtype=case.dtype, seed=4) if sunk else None
    runs = [Run(at, sum(counts[:at]), count) for at, count in enumerate(counts)]
    heads = case.heads // case.kv_heads
    shared = mx.array(shares(runs, heads, count=most_shares(sum(counts), heads, 7)))
    tables = pool.tables([0, 1, 2], firsts, lengths)
    found = attention.flash_runs(pool.group, pool.layer, queries, tables, shared, codec, 0.125, sinks, written)
    for row, first, n in runs:
        own = queries[first : first + n].swapaxes(0, 2)
        wanted = truth(packed[row], case, own, codec, sinks, 0.125)
        assert near(found[first : first + n].swapaxes(0, 2), wanted, case.dtype), row


def test_what_others_have_is_not_written() -> None:
    case = CASES[0]
    pool, codec = Pool(*case.made(), 2, 2), case.codec()
    k = random(2, case.kv_heads, 20, case.k_dim)
    tables = pool.tables([0, 1], [0, 0], [20, 20])
    mx.eval(write_kernels.write(pool.group, pool.layer, k, k, tables, mx.array([7, 20], dtype=mx.int32), codec))
    for row, floor in enumerate((7, 20)):
        words = np.array(pool.written(row, 20)[0].weights)[0, 0]
        assert (words == 0xFFFFFFFF).all(axis=1).sum() == floor


def test_blocks_are_copied() -> None:
    pool = Pool(*Case().made(), 2, 2)
    words = mx.arange(2 * pool.layout.words, dtype=mx.uint32).reshape(2, -1)
    addresses = pool.base + np.array([3, 1]) * pool.layout.nbytes
    mx.eval(kernels.store(words, mx.array(addresses.astype(np.int64))))
    assert equal(mx.array(pool.view()[[3, 1]]), words)
    assert (pool.view()[[0, 2, 4]] == 0xFFFFFFFF).all()
    assert equal(kernels.load(mx.array(addresses[::-1].astype(np.int64)), pool.layout.words), words[::-1])
