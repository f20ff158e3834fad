"""All memory of a model's KV: blocks of its full-attention layers, blocks of its windows, states of its recurrent
layers; and what a call of the model gets for its caches. Engine thread only.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

import mlx.core as mx
import numpy as np

from agentmem.kv.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, HostTensors
from inference_service.engine.paged.arena import Arena, HostArena
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.passes import ArrayKVCache, KVCache, Pass, StatesCache, state_caches
from inference_service.engine.paged.sequence import BlockTable, Sequence, States, WindowTable, WorkingKV
from inference_service.engine.quantization import Quantized


class KVStore:
    """The arenas of one model. `codecs` are those of its layers with KV; without, K and V are not centred."""

    def __init__(
        self,
        geometry: Geometry,
        blocks: int,
        pieces: int,
        codecs: Items[KVCodec] = (),
        segments: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """`segments` is how many blocks and how many pieces of windows are taken at once; by default all."""
        self.geometry = geometry
        self.codecs = dict(zip(geometry.kv_layers, codecs or geometry.codecs(), strict=True))
        self.full = Arena.of(BlockLayout(geometry.block_shapes(BLOCK_TOKENS)), blocks, segments[0])
        self.windows: Arena | None = None
        if geometry.sliding is not None:
            shapes = geometry.shapes(geometry.sliding, geometry.piece_tokens)
            self.windows = Arena.of(BlockLayout(shapes), pieces, segments[1])

    def sequence(self, blocks: Items[int], pieces: Items[int] = ()) -> Sequence:
        """An empty sequence with these blocks, in order, and pieces for its window; their memory is taken."""
        self.full.take(blocks)
        window = None
        if self.windows is not None:
            self.windows.take(pieces)
            window = WindowTable(self.geometry.piece_tokens, window=self.geometry.window, spare=list(pieces))
        return Sequence(BlockTable(BLOCK_TOKENS, list(blocks)), window=window)

    def resume(self, sequence: Sequence) -> None:
        """Make the arrays, lazily, of a sequence whose tokens are in blocks alone."""
        for group in self.geometry.groups:
            windows = group is self.geometry.sliding
            arena, table = (self.windows, sequence.window) if windows else (self.full, sequence.full)
            assert isinstance(arena, HostArena)
            assert table is not None
            start = sequence.window.kept_from(sequence.length) if windows and sequence.window else 0
            prefix = self.geometry.prefix(group)
            packed = _gathered(arena, table, prefix, start, sequence.length, self.geometry.dtype)
            for at, layer in enumerate(group.layers):
                k, v = (
                    Quantized(*(packed[f"{side}.{part}"][at : at + 1] for part in Quantized._fields)) for side in "kv"
                )
                working = sequence.working[layer] = WorkingKV(group.window or 0)
                working.append(*self.codecs[layer].decode(k, v))

    def caches(self, of: Pass) -> list[KVCache | StatesCache]:
        """Make the caches of a pass, in the order of the layers. Sequences get room for its tokens."""
        for sequence, n in of.pieces:
            if sequence.window is not None:
                sequence.window.slide(sequence.length + n)
        found: dict[int, Any] = {
            layer: ArrayKVCache(of, layer, self.codecs[layer], group.window or 0)
            for group in self.geometry.groups
            for layer in group.layers
        }
        if (states := self.geometry.states) is not None:
            counts = [(layer, len(arrays)) for layer, arrays in zip(states.layers, states.arrays, strict=True)]
            found |= state_caches(of, counts)
        return [found[layer] for layer in sorted(found)]

    def taken(self, of: Pass, caches: Items[KVCache | StatesCache]) -> "Written":
        """The tokens of a pass are in its caches: they count. Returns what is still to be put into blocks."""
        states = [cache.cache for cache in caches if isinstance(cache, StatesCache)]
        if states:
            after = States(states)
            for row, (sequence, _) in enumerate(of.pieces):
                sequence.states, sequence.row = after, row
        written = Written(self, of, caches)
        of.advance()
        return written


class Written:
    """K and V of a pass on their way into blocks of host memory. `state` is to be computed before `put`."""

    def __init__(self, store: KVStore, of: Pass, caches: Items[KVCache | StatesCache]) -> None:
        self._of = of
        self._starts = [(start, start + piece.tokens) for piece, start in zip(of.pieces, of.starts, strict=True)]
        self._groups: list[tuple[Arena, str, dict[str, mx.array], Callable[[Sequence], BlockTable | None]]] = []
        for group in store.geometry.groups:
            packed = [cache.packed for layer in group.layers if isinstance(cache := caches[layer], ArrayKVCache)]
            if not packed or None in packed:
                continue
            sides = list(zip(*packed, strict=True))
            stacked = {
                name: mx.stack([getattr(each, part) for each in sides["kv".index(side)]])
                for name in TENSORS
                for side, part in [name.split(".")]
            }
            windows = group is store.geometry.sliding
            arena = store.windows if windows else store.full
            assert arena is not None
            table = (lambda sequence: sequence.window) if windows else (lambda sequence: sequence.full)
            self._groups.append((arena, store.geometry.prefix(group), stacked, table))

    @property
    def state(self) -> list[mx.array]:
        """All arrays, for `mx.eval`."""
        return [array for _, _, stacked, _ in self._groups for array in stacked.values()]

    def put(self) -> None:
        """Copy what was computed to the sequences' blocks."""
        for arena, prefix, stacked, table_of in self._groups:
            assert isinstance(arena, HostArena)
            hosts = {name: _host(array) for name, array in stacked.items()}
            row = 0
            for (sequence, n), (start, end) in zip(self._of.pieces, self._starts, strict=True):
                table = table_of(sequence)
                assert table is not None
                # [layers, rows, heads, n, width] of rows, and of one piece
                own = {
                    prefix + name: host[:, row : row + n, :, 0].swapaxes(1, 2) if self._of.rows else host[:, 0]
                    for name, host in hosts.items()
                }
                _put(arena, table, start, end, own)
                row += n
        self._groups = []


def _gathered(
    arena: HostArena, table: BlockTable, prefix: str, start: int, end: int, dtype: mx.Dtype
) -> dict[str, mx.array]:
    """The six tensors [layers, kv_heads, tokens, width] of the tokens from `start` up to `end`."""
    views = [arena.layout.views(arena.words(block)) for block in table.of(start, end)]
    first = table.first + (start - table.first) // table.tokens * table.tokens
    found = {}
    for name in TENSORS:
        whole = np.concatenate([view[prefix + name] for view in views], axis=2)[:, :, start - first : end - first]
        array = mx.array(whole)
        found[name] = array if name.endswith("weights") or array.dtype == dtype else array.view(dtype)
    return found


def _put(arena: HostArena, table: BlockTable, start: int, end: int, tensors: HostTensors) -> None:
    """Copy tensors of the tokens from `start` up to `end` to a table's blocks; those before its first are left out."""
    at = max(start, table.first)
    while at < end:
        inside = (at - table.first) % table.tokens
        stop = min(end, at + table.tokens - inside)
        own = {name: tensor[:, :, at - start : stop - start] for name, tensor in tensors.items()}
        arena.put([(table.at(at), inside, own)])
        at = stop


def _host(array: mx.array) -> Any:
    """An evaluated array as host memory; 16-bit floats as their bits."""
    return np.array(array.view(mx.uint16) if array.dtype.size == 2 else array, copy=False)
