"""Caches of layers whose K and V kernels write into blocks and read there. NVIDIA GPUs.

Tables are built once for all layers of a kind. For many queries of one sequence, K and V are unpacked layer by layer.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import mlx.core as mx
import numpy as np

from inference_service.engine.attention.latents import MOST_ABSORBED
from inference_service.engine.codec import KVCodec
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.arena import DeviceArena
from inference_service.engine.paged.kernels import PagedGroup, Tables
from inference_service.engine.paged.passes import KVCache, Pass, Pieces, Seen
from inference_service.engine.paged.sequence import SLACK, BlockTable
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.shares import Run, shares

_FEW: Final = 511
"""Most queries of one sequence that attend over packed K and V."""
ROWS_OF_ONE: Final = 8
"""Rows of one sequence from which on they attend together, so that K and V are read once."""
_BUCKET: Final = 8
"""Tables are padded to a multiple of this many blocks."""


class PassTables:
    """The tables of a pass over one arena; `before`: without the pass's own tokens."""

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
        """A table per row [T, blocks], each ending with the row's own token; else the one piece's table."""
        if not self.of.rows:
            return self.each[0]
        spans = self.of.spans()
        return self._tables([(s, start + i + 1) for s, first, last, start in spans for i in range(last - first)])

    @cached_property
    def runs(self) -> list[Run]:
        """The rows of each piece; empty if no piece has enough to attend together."""
        if all(piece.tokens < ROWS_OF_ONE for piece in self.of.pieces):
            return []
        return [Run(last - 1, first, last - first) for _, first, last, _ in self.of.spans()]

    def shares(self, heads: int) -> mx.array | None:
        """None without runs."""
        if heads not in self._shares:
            self._shares[heads] = mx.array(shares(self.runs, heads)) if self.runs else None
        return self._shares[heads]

    @cached_property
    def _shares(self) -> dict[int, mx.array | None]:
        return {}

    @cached_property
    def floors(self) -> mx.array:
        """Positions before which rows write nothing, int32 [rows]."""
        return mx.array(self._floors)

    @property
    def _floors(self) -> Any:
        shared = [
            piece.sequence.shared if self._table_of(piece.sequence) is piece.sequence.full else 0
            for piece in self.of.pieces
        ]
        counts = [piece.tokens if self.of.rows else 1 for piece in self.of.pieces]
        return np.repeat(np.array(shared, np.int32), counts)

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Blocks and spans of the rows' tables, and floors, in host memory."""
        spans = self.of.spans()
        blocks, ends = self._places(
            [(s, start + i + 1) for s, first, last, start in spans for i in range(last - first)]
        )
        return blocks, ends, self._floors

    def _tables(self, rows: list[tuple[KVSequence, int]]) -> Tables:
        blocks, spans = self._places(rows)
        return Tables(mx.array(blocks), mx.array(spans))

    def _places(self, rows: list[tuple[KVSequence, int]]) -> tuple[Any, Any]:
        tables = [self._table_of(sequence) for sequence, _ in rows]
        counts = [-(-(end - table.first) // table.tokens) for table, (_, end) in zip(tables, rows, strict=True)]
        width = -(-max(counts) // _BUCKET) * _BUCKET
        found = np.zeros((len(rows), width), np.int64)
        known: dict[int, Any] = {}
        for row, (table, count) in enumerate(zip(tables, counts, strict=True)):
            if (places := known.get(id(table))) is None:
                places = known[id(table)] = self._arena.addresses(table.blocks)
            found[row, :count] = places[:count]
        return found, np.array([(table.first, end) for table, (_, end) in zip(tables, rows, strict=True)], np.int32)


class BlockKVCache(KVCache):
    """One layer's K and V in blocks. `update_and_fetch` returns this cache, for `attend`, or arrays."""

    def __init__(
        self, of: Pass, layer: int, codec: KVCodec, group: PagedGroup, index: mx.array, tables: PassTables,
        before: PassTables | None, *, one: bool, few: bool, latents: bool = False,
    ) -> None:  # fmt: skip
        """`index` int32 [1]: the layer's index in its group. `before`: the window's tables before a chunk that reuses
        their blocks. `one`, `few`: attend over packed K and V for one query, for a few.
        """
        super().__init__(of, layer, codec, group.window)
        self._group, self._index, self._tables, self._before = group, index, tables, before
        self._one, self._few = one, few
        self._most_few = MOST_ABSORBED if latents else _FEW
        self._written: mx.array | None = None
        self._kv: tuple[mx.array, mx.array] | None = None
        """K and V that are written with the queries."""

    @property
    def dtype(self) -> mx.Dtype:
        """Some models return to it from attention in float32."""
        return self._group.dtype

    @property
    def state(self) -> list[mx.array]:
        return [] if self._written is None else [self._written]

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
            return self._one
        return self._few and self.of.tokens <= self._most_few

    def _shown(self, start: int) -> int:
        """Return how many tokens before `start` are seen from there on."""
        return min(start, self.window - 1) if self.window else start

    def _write(self, keys: mx.array, values: mx.array, *, as_encoded: bool = False) -> None:
        self._value_width = int(values.shape[-1])
        of = self._tables.rows, self._tables.floors, self.codec
        self._written = write_kernels.write(self._group, self._index, keys, values, *of, as_encoded=as_encoded)

    def _arrays(self, tables: Tables, start: int, n: int, widths: tuple[int, int]) -> tuple[mx.array, mx.array]:
        """Return K and V that n tokens from `start` on see, themselves last."""
        assert self._written is not None
        before = self._shown(start)
        k, v = kernels.decoded(
            self._group, self._index, tables, mx.array([start - before]), before + n, self.codec, self._written
        )
        return k[..., : widths[0]], v[..., : widths[1]]

    def _beyond_the_window(self, keys: mx.array, values: mx.array, before: PassTables) -> tuple[mx.array, mx.array]:
        """Read the window first: a chunk this long reuses its blocks."""
        start = self.of.starts[0]
        k, v = (
            x[..., : y.shape[-1]]
            for x, y in zip(self.codec.decode(*self.codec.encode(keys, values)), (keys, values), strict=True)
        )
        shown = self._shown(start)
        if shown:
            old = kernels.decoded(
                self._group, self._index, before.each[0], mx.array([start - shown]), shown, self.codec, mx.array([0])
            )
            k, v = (mx.concatenate([x[..., : y.shape[-1]], y], axis=2) for x, y in zip(old, (k, v), strict=True))
            keys, values = mx.depends([keys, values], [k, v])
        self._write(keys, values, as_encoded=True)
        return k, v

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """Compute attention of queries [rows, heads, n, k_dim] over the tokens each sees: [rows, heads, n, v_dim]."""
        group, index, codec, tables, packed = self._group, self._index, self.codec, self._tables.rows, None
        if self._kv is not None:
            self._written, packed = write_kernels.write_with_queries(
                group, index, *self._kv, queries, tables, self._tables.floors, codec
            )
            self._kv = None
        assert self._written is not None
        of = codec, scale, sinks, self._written, packed
        if not self._over_packed:
            mask = self.make_mask(self.of.tokens)
            total = self._shown(self.of.starts[0]) + self.of.tokens
            out = attention.over_arrays(group, index, queries, tables, total, mask, *of)
        elif not self.of.rows:
            attend = attention.flash_decoding if queries.shape[2] == 1 else attention.flash_prefill
            out = attend(group, index, queries, tables, *of)
        elif self._few and (shares := self._tables.shares(queries.shape[1] // group.kv_heads)) is not None:
            out = attention.flash_runs(group, index, queries, tables, shares, *of)
        else:
            out = attention.flash_decoding(group, index, queries, tables, *of)
        return out[..., : self._value_width]

    def attend_latents(self, queries: mx.array, rotary_queries: mx.array, scale: float) -> mx.array:
        """See `attention.flash_latents`."""
        assert self._written is not None
        tables = self._tables.rows
        most = tables.blocks.shape[1] * self._group.tokens
        return attention.flash_latents(
            self._group, self._index, queries, rotary_queries, tables, most, self.codec, scale, self._written
        )


def slides_first(tokens: int) -> bool:
    return tokens <= SLACK
