"""Copies of K and V between arrays and host memory. Engine thread only."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import chain
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from agentmem.kv.blockfile import TENSORS
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import HostTensors, LayerGroup
from inference_service.engine.paged.arena import Arena, HostArena
from inference_service.engine.paged.passes import ArrayKVCache, KVCache, Pass, StatesCache
from inference_service.engine.paged.sequence import BlockTable, Sequence, States, WorkingKV, with_slack
from inference_service.engine.quantization import Quantized


class Home(NamedTuple):
    """Where a layer group lies: arena, prefix of tensors."""

    group: LayerGroup
    arena: Arena
    prefix: str

    def table(self, sequence: Sequence) -> BlockTable:
        table = sequence.window if self.group.window else sequence.full
        assert table is not None
        return table

    def unpacked(
        self, sequence: Sequence, layers: Items[int], codec_of: Callable[[int], KVCodec], dtype: mx.Dtype
    ) -> list[WorkingKV]:
        """Return adjacent layers as arrays, lazily."""
        table, window = self.table(sequence), self.group.window or 0
        rows = [self.group.layers.index(layer) for layer in layers]
        start = table.kept_from(sequence.length)
        packed = self._gathered(table, start, sequence.length, dtype, rows) if sequence.length else {}
        found = []
        for at, layer in enumerate(layers):
            working = WorkingKV(window)
            if packed:
                k, v = (
                    Quantized(*(packed[f"{side}.{part}"][at : at + 1] for part in Quantized._fields)) for side in "kv"
                )
                working.take(*codec_of(layer).decode(k, v), sequence.length - start)
            found.append(working)
        return found

    def _gathered(
        self, table: BlockTable, start: int, end: int, dtype: mx.Dtype, rows: Items[int]
    ) -> dict[str, mx.array]:
        """Return six tensors [layers, kv_heads, room, width], `start` up to `end`, then zeros."""
        assert isinstance(self.arena, HostArena)
        views = [self.arena.layout.views(self.arena.words(block)) for block in table.of(start, end)]
        before, found = (start - table.first) % table.tokens, {}
        for name in TENSORS:
            parts = [view[self.prefix + name][rows[0] : rows[-1] + 1] for view in views]
            layers, heads, _, width = parts[0].shape
            whole = np.zeros((layers, heads, with_slack(end - start), width), parts[0].dtype)
            for i, part in enumerate(parts):
                at = i * table.tokens - before
                own = part[:, :, max(0, -at) : end - start - at]
                whole[:, :, max(0, at) : max(0, at) + own.shape[2]] = own
            array = mx.array(whole)
            found[name] = array if name.endswith("weights") or array.dtype == dtype else array.view(dtype)
        return found


class Written:
    """Evaluate `state` before `put`."""

    def __init__(
        self, homes: Items[Home], of: Pass, caches: Items[KVCache | StatesCache], states: States | None = None
    ) -> None:
        self._of = of
        self._states = states
        self._starts = [(start, start + piece.tokens) for piece, start in zip(of.pieces, of.starts, strict=True)]
        self._packed: list[tuple[Home, list[list[mx.array]]]] = []
        for home in homes if caches else ():
            own = [caches[layer] for layer in home.group.layers]
            packed = [cache.packed for cache in own if isinstance(cache, ArrayKVCache)]
            if packed and all(packed):
                sides = zip(*packed, strict=True)
                self._packed.append(
                    (home, [[mx.stack(list(layers)) for layers in zip(*side, strict=True)] for side in sides])
                )

    @property
    def state(self) -> list[mx.array]:
        states = self._states.arrays if self._states is not None else []
        return states + [array for _, sides in self._packed for side in sides for array in side]

    def put(self) -> None:
        """Skips sequences that have ended."""
        for home, sides in self._packed:
            parts = [[_host(array) for array in side] for side in sides]
            if len(parts) == 1:  # as one
                parts = [[part[:, :, of] for part in parts[0]] for of in halves(parts[0][0].shape[2])]
            hosts = dict(zip((home.prefix + name for name in TENSORS), chain(*parts), strict=True))
            row = 0
            for (sequence, n), (start, end) in zip(self._of.pieces, self._starts, strict=True):
                own = {
                    name: host[:, row : row + n, :, 0].swapaxes(1, 2) if self._of.rows else host[:, 0]
                    for name, host in hosts.items()
                }
                row += n
                if not sequence.ended:
                    table = home.table(sequence)
                    first = max(start, table.first, sequence.shared if table is sequence.full else 0)
                    put(home.arena, table, first, {name: x[:, :, first - start :] for name, x in own.items()}, end)
        self._packed, self._states = [], None


def halves(n: int) -> tuple[slice, slice]:
    return slice(None, n // 2), slice(n // 2, None)


def put(arena: Arena, table: BlockTable, start: int, tensors: HostTensors, end: int) -> None:
    """Copy tensors [layers, kv_heads, n, width] of `start` up to `end`."""
    placed, at = [], start
    while at < end:
        inside = (at - table.first) % table.tokens
        stop = min(end, at + table.tokens - inside)
        own = {name: tensor[:, :, at - start : stop - start] for name, tensor in tensors.items()}
        placed.append((table.at(at), inside, own))
        at = stop
    arena.put(placed)


def _host(array: mx.array) -> Any:
    """16-bit floats become their bits."""
    return np.array(array.view(mx.uint16) if array.dtype.size == 2 else array, copy=False)
