"""Caches of layers whose K and V kernels write into blocks and read there. NVIDIA GPUs."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import mlx.core as mx
import numpy as np

from inference_service.engine.attention.latents import MOST_ABSORBED
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.arena import DeviceArena
from inference_service.engine.paged.kernels import Kernels, LayerBlocks, Tables
from inference_service.engine.paged.passes import KVCache, Pass, Pieces, Seen
from inference_service.engine.paged.sequence import SLACK, BlockTable
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.shares import Run, shares

_FEW: Final = 511
"""Most queries of one sequence that attend over packed K and V."""
ROWS_OF_ONE: Final = 8
"""Rows of one sequence that attend together: K and V are read once."""
_BUCKET: Final = 8
"""Tables are padded to a multiple of it."""


class PassTables:
    """`before`: without the pass's own tokens."""

    def __init__(
        self, of: Pass, arena: DeviceArena, table_of: Callable[[KVSequence], BlockTable], *, before: bool = False
    ) -> None:
        self.of = of
        self._before = before
        self._arena = arena
        self._table_of = table_of

    @cached_property
    def each(self) -> list[Tables]:
        ends = [(s, start if self._before else start + last - first) for s, first, last, start in self.of.spans()]
        return [self._tables([each]) for each in ends]

    @cached_property
    def rows(self) -> Tables:
        """By row, each ending with its own token, or one piece's."""
        return Tables(*map(mx.array, self.arrays)) if self.of.rows else self.each[0]

    @cached_property
    def runs(self) -> list[Run]:
        """Rows of each piece; none if no piece has enough."""
        if all(piece.tokens < ROWS_OF_ONE for piece in self.of.pieces):
            return []
        return [Run(last - 1, first, last - first) for _, first, last, _ in self.of.spans()]

    def shares(self, heads: int) -> mx.array | None:
        if heads not in self._shares:
            self._shares[heads] = mx.array(shares(self.runs, heads)) if self.runs else None
        return self._shares[heads]

    @cached_property
    def _shares(self) -> dict[int, mx.array | None]:
        return {}

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """`Tables` of the rows, in host memory."""
        spans = self.of.spans()
        return self._places([(s, start + i + 1) for s, first, last, start in spans for i in range(last - first)])

    def _tables(self, rows: list[tuple[KVSequence, int]]) -> Tables:
        return Tables(*map(mx.array, self._places(rows)))

    def _places(self, rows: list[tuple[KVSequence, int]]) -> tuple[Any, Any, Any]:
        tables = [self._table_of(sequence) for sequence, _ in rows]
        counts = [-(-(end - table.first) // table.tokens) for table, (_, end) in zip(tables, rows, strict=True)]
        width = -(-max(counts) // _BUCKET) * _BUCKET
        found = np.zeros((len(rows), width), np.int64)
        known: dict[int, Any] = {}
        for row, (table, count) in enumerate(zip(tables, counts, strict=True)):
            if (places := known.get(id(table))) is None:
                places = known[id(table)] = self._arena.addresses(table.blocks)
            found[row, :count] = places[:count]
        spans = [(table.first, end) for table, (_, end) in zip(tables, rows, strict=True)]
        floors = [s.shared if table is s.full else 0 for table, (s, _) in zip(tables, rows, strict=True)]
        return found, np.array(spans, np.int32), np.array(floors, np.int32)


class BlockKVCache(KVCache):
    """`update_and_fetch` returns this cache, for `attend`, or arrays."""

    def __init__(
        self, of: Pass, layer: int, blocks: LayerBlocks, tables: PassTables, before: PassTables | None,
        kernels: Kernels, *, latents: bool = False,
    ) -> None:  # fmt: skip
        """`before`: the window's tables before a chunk that reuses their blocks."""
        super().__init__(of, layer, blocks.codec, blocks.group.window)
        self._blocks, self._tables, self._before, self._kernels = blocks, tables, before, kernels
        self._most_few = MOST_ABSORBED if latents else _FEW
        self._has_written = False
        self._kv: tuple[mx.array, mx.array] | None = None
        """Written with the queries."""

    @property
    def dtype(self) -> mx.Dtype:
        """Some models return to it from float32."""
        return self._blocks.group.dtype

    @property
    def state(self) -> list[mx.array]:
        return [self._blocks.written] if self._has_written else []

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        if self._before is not None:
            return self._beyond_the_window(keys, values, self._before)
        widths = keys.shape[-1], values.shape[-1]
        based = self.codec.packed_means is not None and not self.of.rows
        if (self._over_packed or based) and self.codec.kernel_bases:
            self._value_width, self._kv = widths[1], (keys, values)
            return self, self
        self._write(keys, values)
        if self._over_packed or based:
            return self, self
        seen = Pieces(
            Seen(*self._arrays(tables, start, last - first, widths), last - first, self.window)
            for tables, (_, first, last, start) in zip(self._tables.each, self.of.spans(), strict=True)
        )
        return (seen, seen) if self.of.rows else (seen[0].keys, seen[0].values)

    @property
    def _over_packed(self) -> bool:
        if self.of.rows or self.of.tokens == 1:
            return self._kernels.one
        return self._kernels.few and self.of.tokens <= self._most_few

    def _shown(self, start: int) -> int:
        """Return how many tokens before `start` are seen."""
        return min(start, self.window - 1) if self.window else start

    def _write(self, keys: mx.array, values: mx.array, *, as_encoded: bool = False) -> None:
        self._value_width = int(values.shape[-1])
        self._note(write_kernels.write(self._blocks, keys, values, as_encoded=as_encoded))

    def _note(self, written: mx.array) -> None:
        self._blocks, self._has_written = self._blocks._replace(written=written), True

    def _arrays(self, tables: Tables, start: int, n: int, widths: tuple[int, int]) -> tuple[mx.array, mx.array]:
        """Return K and V that n tokens from `start` on see."""
        before = self._shown(start)
        k, v = kernels.decoded(self._blocks._replace(tables=tables), mx.array([start - before]), before + n)
        return k[..., : widths[0]], v[..., : widths[1]]

    def _beyond_the_window(self, keys: mx.array, values: mx.array, before: PassTables) -> tuple[mx.array, mx.array]:
        """Read first: a chunk this long reuses the window's blocks."""
        start = self.of.starts[0]
        widths = keys.shape[-1], values.shape[-1]
        k, v = (
            x[..., :width] for x, width in zip(self.codec.decode(*self.codec.encode(keys, values)), widths, strict=True)
        )
        if self._shown(start):
            old = self._arrays(before.each[0], start, 0, widths)
            k, v = (mx.concatenate(list(side), axis=2) for side in zip(old, (k, v), strict=True))
            keys, values = mx.depends([keys, values], [k, v])
        self._write(keys, values, as_encoded=True)
        return k, v

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        packed = None
        if self._kv is not None:
            written, packed = write_kernels.write_with_queries(self._blocks, *self._kv, queries)
            self._note(written)
            self._kv = None
        blocks, of = self._blocks, (scale, sinks, packed)
        if not self._over_packed:
            total = self._shown(self.of.starts[0]) + self.of.tokens
            out = attention.over_arrays(blocks, queries, total, self.make_mask(self.of.tokens), *of)
        elif not self.of.rows:
            attend = attention.flash_decoding if queries.shape[2] == 1 else attention.flash_prefill
            out = attend(blocks, queries, *of)
        elif (
            self._kernels.few and (shares := self._tables.shares(queries.shape[1] // blocks.group.kv_heads)) is not None
        ):
            out = attention.flash_runs(blocks, queries, shares, *of)
        else:
            out = attention.flash_decoding(blocks, queries, *of)
        return out[..., : self._value_width]

    def attend_latents(self, queries: mx.array, rotary_queries: mx.array, scale: float) -> mx.array:
        most = self._blocks.tables.blocks.shape[1] * self._blocks.group.tokens
        return attention.flash_latents(self._blocks, queries, rotary_queries, most, scale)


def slides_first(tokens: int) -> bool:
    return tokens <= SLACK
