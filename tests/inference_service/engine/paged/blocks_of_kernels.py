"""Blocks in which kernels write and read K and V, and what attention over them is, spelled out."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from inference_service.engine.attention.reference import out_of_packed, plain_attention, plain_values, random_codec
from inference_service.engine.attention.self_test import ROUNDING
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.paged import kernels, write_kernels
from inference_service.engine.paged.kernels import LayerBlocks, PagedGroup, Tables
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.quantization import ROTATED, KVFormat, Quantized
from tests.inference_service.engine.geometries import random

BLOCK = 64
LAYERS = (0, 2)
LAYER = 1
"""The layer's place in its group; another lies before it in a block."""


class Case(NamedTuple):
    kv_heads: int = 2
    heads: int = 4
    k_dim: int = 64
    v_dim: int = 64
    dtype: mx.Dtype = mx.float32
    bits: tuple[int, int] = (4, 4)
    group: int = 32
    window: int = 0
    scheme: str = ROTATED

    def made(self) -> tuple[Geometry, LayerGroup]:
        full = LayerGroup(LAYERS, self.kv_heads, self.k_dim, self.v_dim, self.window or None)
        return Geometry(self.heads, self.dtype, KVFormat(*self.bits, self.group, self.scheme), full), full

    def codec(self, *, centred: bool = True, k_mean: float = 1.0) -> KVCodec:
        """Outputs contain the mean of V, and so its rounding: it is small."""
        made, _ = self.made()
        if not centred:
            return KVCodec(made.format)
        k = k_mean * random(self.kv_heads, self.k_dim, dtype=self.dtype, seed=8)
        v = 0.125 * random(self.kv_heads, self.v_dim, dtype=self.dtype, seed=9)
        return random_codec(made.format, (k.astype(self.dtype), v.astype(self.dtype)), 7)


class Pool:
    """Blocks in memory, poisoned, for sequences whose blocks lie in no order."""

    def __init__(self, case: Case, sequences: int, blocks: int, seed: int = 0) -> None:
        made, group = case.made()
        self.layout = BlockLayout(made.shapes(group, BLOCK))
        self.group = PagedGroup.of(made, group, self.layout, BLOCK)
        self.memory = mx.full((sequences * blocks + 1, self.layout.words), 0xFFFFFFFF, dtype=mx.uint32)
        mx.eval(self.memory)
        order = np.random.default_rng(seed).permutation(sequences * blocks)
        self.numbers = order.reshape(sequences, blocks)
        self.base = kernels.address(self.memory) if mx.cuda.is_available() else self.view().ctypes.data

    def view(self) -> np.ndarray[Any, Any]:
        return np.array(self.memory, copy=False)

    def tables(self, rows: list[int], ends: list[int], shown: Iterable[int] = (), floors: Iterable[int] = ()) -> Tables:
        """Return tables of rows of these sequences, each from the block that holds the first token `shown`."""
        firsts = [first // BLOCK * BLOCK for first in shown] or [0] * len(rows)
        width = self.numbers.shape[1]
        found = np.full((len(rows), width), self.base + len(self.view()[:-1]) * self.layout.nbytes, np.int64)
        for at, (row, first) in enumerate(zip(rows, firsts, strict=True)):
            blocks = self.numbers[row, first // BLOCK :]
            found[at, : len(blocks)] = self.base + blocks * self.layout.nbytes
        spans = np.array([firsts, ends], np.int32).T.copy()
        return Tables(*map(mx.array, (found, spans, np.array([*floors] or [0] * len(rows), np.int32))))

    def of(self, codec: KVCodec, tables: Tables) -> LayerBlocks:
        return LayerBlocks(self.group, mx.array([LAYER]), codec, tables)

    def written(self, row: int, tokens: int) -> tuple[Quantized, Quantized]:
        """Return packed K and V of a sequence's first tokens, from its blocks, in one piece."""
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


class Filled:
    """Sequences of these lengths in blocks of a pool, written in two pieces."""

    def __init__(self, case: Case, lengths: list[int], codec: KVCodec | None = None) -> None:
        self.case, self.codec = case, codec or case.codec()
        self.pool = Pool(case, len(lengths), -(-max(lengths) // BLOCK))
        self.kv, self.written = [], mx.zeros(1, mx.int32)
        k_mean, v_mean = (0 if x is None else x for x in (self.codec.k_mean, self.codec.v_mean))
        for row, tokens in enumerate(lengths):
            k = random(1, case.kv_heads, tokens, case.k_dim, dtype=case.dtype, seed=20 + row) + k_mean
            v = random(1, case.kv_heads, tokens, case.v_dim, dtype=case.dtype, seed=40 + row) + v_mean
            self.kv.append((k, v))
            for part in (slice(0, max(1, tokens - 20)), slice(max(1, tokens - 20), tokens)):
                if part.start < part.stop:
                    tables = self.pool.tables([row], [part.stop])
                    self.written = write_kernels.write(self.pool.of(self.codec, tables), k[:, :, part], v[:, :, part])
                    mx.eval(self.written)

    def of(self, rows: list[int], ends: list[int], shown: Iterable[int] = ()) -> LayerBlocks:
        return self.pool.of(self.codec, self.pool.tables(rows, ends, shown))._replace(written=self.written)

    def with_queries(
        self, of: LayerBlocks, rows: list[int], ends: list[int], queries: mx.array
    ) -> tuple[LayerBlocks, mx.array | None]:
        """Write the last tokens again, with their queries [rows, heads, n, k_dim], as a pass does."""
        if self.codec.kernel_bases is None:
            return of, None
        n = queries.shape[2]
        k, v = (
            mx.concatenate([self.kv[row][side][:, :, end - n : end] for row, end in zip(rows, ends, strict=True)])
            for side in (0, 1)
        )
        written, packed = write_kernels.write_with_queries(of, k, v, queries)
        return of._replace(written=written), packed

    def values(self, row: int, end: int) -> list[mx.array]:
        """Return K and V of a sequence's first tokens as they are packed, float32 [1, kv_heads, tokens, width]."""
        by, codec = self.codec.format, self.codec
        backs = out_of_packed(codec, (self.case.k_dim, self.case.v_dim))
        means = (mx.zeros((self.case.kv_heads, 1)) if m is None else m[:, 0] for m in (codec.k_mean, codec.v_mean))
        found = []
        for x, how, mean, back in zip(self.pool.written(row, end), (by.k, by.v), means, backs, strict=True):
            exact = Quantized(x.weights, x.scales.astype(mx.float32), x.biases.astype(mx.float32))
            found.append(plain_values(exact, how, mean, back))
        return found

    def error(self, found: mx.array, row: int, end: int, queries: mx.array, sinks: mx.array | None = None) -> float:
        """Return how far attention of queries [1, heads, n, k_dim] is off, of the largest output less V's mean."""
        exact = plain_attention(queries, *self.values(row, end), 0.125, self.case.window or None, sinks)
        mean = (
            0
            if self.codec.v_mean is None
            else mx.repeat(self.codec.v_mean[:, 0].astype(mx.float32), self.case.heads // self.case.kv_heads, axis=0)[
                :, None
            ]
        )
        return off(found, exact, mean)

    def right(self, found: mx.array, *of: Any) -> bool:
        return self.error(found, *of) < ROUNDING[self.case.dtype]


def off(found: mx.array, exact: mx.array, mean: mx.array | float = 0.0) -> float:
    error: float = (mx.abs(found.astype(mx.float32) - exact).max() / mx.abs(exact - mean).max()).item()  # type: ignore[assignment]
    return error
