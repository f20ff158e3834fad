"""All memory of a model's KV: blocks of its full-attention layers, blocks of its windows, states of its recurrent
layers; and what a call of the model gets for its caches. Engine thread only.
"""

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
import numpy as np

from agentmem.kv.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, HostBuffers, HostTensors, LayerGroup
from inference_service.engine.paged.arena import Arena, DeviceArena, HostArena
from inference_service.engine.paged.in_blocks import BlockKVCache, PassTables, slides_first
from inference_service.engine.paged.kernels import PagedGroup
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.passes import ArrayKVCache, KVCache, Pass, StatesCache, state_caches
from inference_service.engine.paged.sequence import (
    BlockTable,
    Checkpoint,
    Sequence,
    States,
    WindowTable,
    WorkingKV,
    gathered,
)
from inference_service.engine.paged.traces import Traces
from inference_service.engine.quantization import Quantized
from inference_service.engine.uploading import host_bytes, uploaded_states

log = logging.getLogger(__name__)

_INDEX = [mx.array([index], dtype=mx.int32) for index in range(256)]
"""Places of layers in their group, for kernels."""


class Kernels(NamedTuple):
    """What is by kernels of ours, where K and V are in a device's own memory: attention over packed K and V of `one`
    query of a row, and of a `few` of a sequence; whether passes are `traced`.
    """

    one: bool = False
    few: bool = False
    traced: bool = False


NO_KERNELS: Final = Kernels()


class KVStore:
    """The arenas of one model. `codecs` are those of its layers with KV; without, K and V are not centred."""

    def __init__(
        self,
        geometry: Geometry,
        blocks: int,
        pieces: int,
        codecs: Items[KVCodec] = (),
        segments: tuple[int | None, int | None] = (None, None),
        kernels: Kernels = NO_KERNELS,
    ) -> None:
        """`segments` is how many blocks and how many pieces of windows are taken at once; by default all."""
        self.geometry = geometry
        self.codecs = dict(zip(geometry.kv_layers, codecs or geometry.codecs(), strict=True))
        self.full = Arena.of(BlockLayout(geometry.block_shapes(BLOCK_TOKENS)), blocks, segments[0])
        self.windows: Arena | None = None
        self._segment_pieces = segments[1] or max(1, pieces)
        if geometry.sliding is not None:
            shapes = geometry.shapes(geometry.sliding, geometry.piece_tokens)
            self.windows = Arena.of(BlockLayout(shapes), pieces, segments[1])

        self.kernels = kernels
        self.traces: Traces | None = None
        self._states: dict[int, States] = {}
        """Of checkpoints, by their first piece."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that is taken: of the arenas, and of the states that are there."""
        arenas = sum(arena.nbytes for arena in self._arenas)
        return arenas + sum(int(array.nbytes) for states in self._states.values() for array in states.arrays)

    @property
    def _arenas(self) -> list[Arena]:
        return [arena for arena in (self.full, self.windows) if arena is not None]

    def close(self) -> None:
        """Release the memory. The store must not be used afterwards."""
        for arena in self._arenas:
            arena.close()
        self._states.clear()

    def release(self, blocks: Items[int], pieces: Items[int]) -> None:
        """Give back the memory of segments of the blocks' arena, and of the pieces', in which nothing counts."""
        self.full.release(blocks)
        if self.windows is not None:
            self.windows.release(pieces)
        for piece in [piece for piece in self._states if piece // self._segment_pieces in pieces]:
            del self._states[piece]
        mx.clear_cache()

    def sequence(self, blocks: Items[int], pieces: Items[int] = ()) -> Sequence:
        """An empty sequence with these blocks, in order, and pieces of its own; their memory is taken."""
        self.full.take(blocks)
        own, slots = list(pieces), []
        for piece in own:
            self._states.pop(piece, None)
        if self.geometry.states is not None:
            count = len(own) if self.windows is None else len(own) // self.geometry.checkpoint_pieces
            own, slots = own[count:], own[:count]
        window = None
        if self.windows is not None:
            self.windows.take(own)
            window = WindowTable(self.geometry.piece_tokens, window=self.geometry.window, spare=own)
        return Sequence(BlockTable(BLOCK_TOKENS, list(blocks)), window=window, slots=slots)

    def started(self, start: "Start") -> Sequence:
        """A sequence that goes on from KV in blocks and files. Raises MemoryError."""
        sequence = self.sequence(start.blocks, start.pieces)
        sequence.shared = start.shared
        if start.cut is not None:
            self.full.copy(*start.cut)
        self.full.put([(block, 0, tensors) for block, tensors in start.files])
        if start.checkpoint is not None:
            self._take_up(sequence, start.checkpoint, start.tokens)
        elif start.window_file is not None:
            self._load(sequence, start.window_file, start.tokens, start.window_surplus)
        sequence.length = start.tokens
        sequence.arrays = start.arrays
        if self.by_arrays and sequence.length and start.arrays:
            self.resume(sequence)
        return sequence

    def _take_up(self, sequence: Sequence, checkpoint: Checkpoint, tokens: int) -> None:
        """Go on from a checkpoint, of which the last tokens may be left out. The piece that is written next is copied."""
        slots = int(self.geometry.states is not None)
        if slots:
            states = self._states[checkpoint.pieces[0]]
            sequence.states, sequence.row = States(states.layers), 0
        if (table := sequence.window) is not None:
            table.begins = checkpoint.position - checkpoint.tokens
            table.first = table.begins // table.tokens * table.tokens
            table.blocks = list(checkpoint.pieces[slots:])
            del table.blocks[-(-(tokens - table.first) // table.tokens) :]
            if (tokens - table.first) % table.tokens:
                own = table.spare.pop()
                assert self.windows is not None
                self.windows.copy(table.blocks[-1], own)
                table.blocks[-1] = own

    def _load(self, sequence: Sequence, file: HostTensors, tokens: int, surplus: int) -> None:
        """Go on from a checkpoint's file, of which the last `surplus` tokens of the window are left out."""
        if (table := sequence.window) is not None:
            assert self.geometry.sliding is not None
            assert self.windows is not None
            names = self.geometry.shapes(self.geometry.sliding, 1)
            window = {name: file[name] for name in names}
            held = next(iter(window.values())).shape[2] - surplus
            table.begins = start = tokens - held
            table.first = start // table.tokens * table.tokens
            table.blocks = [table.spare.pop() for _ in range(-(-(tokens - table.first) // table.tokens))]
            placed, at = [], start
            while at < tokens:
                inside = (at - table.first) % table.tokens
                stop = min(tokens, at + table.tokens - inside)
                part = {name: tensor[:, :, at - start : stop - start] for name, tensor in window.items()}
                placed.append((table.at(at), inside, part))
                at = stop
            self.windows.put(placed)
        if self.geometry.states is not None:
            sequence.states, sequence.row = States(uploaded_states(file, self.geometry.states)), 0

    def capture(self, sequence: Sequence) -> Checkpoint | None:
        """A checkpoint where the sequence stands; None of a model of full attention alone, and where layers are lost."""
        if self.geometry.resumes_anywhere or sequence.lost:
            return None
        pieces, tokens = [], sequence.length
        if sequence.states is not None:
            slot = sequence.slots.pop()
            states = sequence.states.rows([sequence.row])
            mx.eval(states.arrays)
            self._states[slot] = states
            pieces.append(slot)
        if (table := sequence.window) is not None:
            tokens -= table.kept_from(sequence.length)
            pieces += table.share(sequence.length)
        return Checkpoint(sequence.length, tokens, tuple(pieces))

    def read_block(self, block: int, tokens: int) -> dict[str, bytes]:
        """A private copy of the first `tokens` tokens in a block, as the tensors of a file by name."""
        return self.full.read(block, tokens)

    def read_checkpoint(self, checkpoint: Checkpoint) -> dict[str, bytes]:
        """A private copy of a checkpoint, as the tensors of a file by name."""
        found: dict[str, bytes] = {}
        pieces, group = checkpoint.pieces, self.geometry.states
        if group is not None:
            arrays = self._states[pieces[0]].arrays
            found |= dict(zip(group.shapes, map(host_bytes, arrays), strict=True))
            pieces = pieces[1:]
        if self.windows is not None:
            found |= self.windows.read_run(pieces, checkpoint.position - checkpoint.tokens, checkpoint.position)
        return found

    def host_buffers(self, block: int, tokens: int) -> HostBuffers | None:
        """The memory of a block's first tokens by tensor and layer; None where it is not the host's. Any thread."""
        if not isinstance(self.full, HostArena):
            return None
        views = self.full.layout.views(self.full.words(block))
        return {name: list(view[:, :, :tokens]) for name, view in views.items()}

    @property
    def layers(self) -> int:
        """Caches of a pass."""
        states = self.geometry.states
        return self.geometry.layers + (len(states.layers) if states is not None else 0)

    def start_bytes(self, tokens: int) -> int:
        """Bytes that a sequence takes besides its blocks when it goes on after so many tokens."""
        return self.geometry.array_bytes(tokens) if self.by_arrays else 0

    def growth(self, of: Pass) -> int:
        """Bytes that a pass takes besides computing: where arrays are full, they are copied to larger ones."""
        found = 0
        for sequence, n in of.pieces if self.by_arrays else ():
            for group in self.geometry.groups:
                if (working := sequence.working.get(group.layers[0])) is not None:
                    found += len(group.layers) * working.growth(n)
        return found

    @property
    def by_arrays(self) -> bool:
        """Sequences have K and V with them as arrays."""
        return isinstance(self.full, HostArena)

    def resume(self, sequence: Sequence) -> None:
        """Make the arrays, lazily, of a sequence whose tokens are in blocks alone."""
        for group in self.geometry.groups:
            for layer, working in self._unpacked(sequence, group, group.layers):
                sequence.working[layer] = working

    def load(self, sequence: Sequence, layer: int) -> WorkingKV:
        """The arrays of one layer, lazily, of the tokens that are in a sequence's blocks."""
        group = next(each for each in self.geometry.groups if layer in each.layers)
        [(_, working)] = self._unpacked(sequence, group, [layer])
        return working

    def _unpacked(self, sequence: Sequence, group: LayerGroup, layers: Items[int]) -> Iterator[tuple[int, WorkingKV]]:
        windows = group is self.geometry.sliding
        arena, table = (self.windows, sequence.window) if windows else (self.full, sequence.full)
        assert isinstance(arena, HostArena)
        assert table is not None
        start = sequence.window.kept_from(sequence.length) if windows and sequence.window else 0
        prefix, dtype = self.geometry.prefix(group), self.geometry.dtype
        rows = [group.layers.index(layer) for layer in layers]
        packed = _gathered(arena, table, prefix, start, sequence.length, dtype, rows) if sequence.length else {}
        for at, layer in enumerate(layers):
            working = WorkingKV(group.window or 0)
            if packed:
                k, v = (
                    Quantized(*(packed[f"{side}.{part}"][at : at + 1] for part in Quantized._fields)) for side in "kv"
                )
                working.append(*self.codecs[layer].decode(k, v))
            yield layer, working

    def compute(self, network: Any, of: Pass, tokens: mx.array) -> "tuple[mx.array, Written]":
        """Logits of a pass's tokens [T], lazily, and what is to be put into blocks; the sequences count them.

        [T, 1, vocabulary] of rows, [1, T, vocabulary] of one piece.
        """
        if (traced := self.step(of, tokens)) is not None:
            return traced
        caches = self.caches(of)
        logits: mx.array = network(tokens[:, None] if of.rows else tokens[None], caches)
        return logits, self.taken(of, caches)

    def caches(self, of: Pass) -> list[KVCache | StatesCache]:
        """What the model's layers get in a pass, in their order."""
        kv = self._over_arrays(of) if self.by_arrays else self._in_blocks(of)
        found: dict[int, Any] = dict(kv)
        if (states := self.geometry.states) is not None:
            counts = [(layer, len(arrays)) for layer, arrays in zip(states.layers, states.arrays, strict=True)]
            found |= state_caches(of, counts)
        return [found[layer] for layer in sorted(found)]

    def _over_arrays(self, of: Pass) -> Iterator[tuple[int, KVCache]]:
        for group in self.geometry.groups:
            for layer in group.layers:
                yield layer, ArrayKVCache(of, layer, self.codecs[layer], group.window or 0, self.load)

    def _in_blocks(self, of: Pass) -> dict[int, BlockKVCache]:
        before = None
        if self.windows is not None and not all(slides_first(n) for _, n in of.pieces):
            old = {piece.sequence: copy(cast(WindowTable, piece.sequence.window)) for piece in of.pieces}
            for table in old.values():
                table.blocks = list(table.blocks)
            before = PassTables(of, self._device(self.windows), old.__getitem__, before=True)
        return self._layers(of, list(self._tables_of(of)), before)

    @staticmethod
    def _device(arena: Arena) -> DeviceArena:
        assert isinstance(arena, DeviceArena)
        return arena

    @cached_property
    def _paged(self) -> dict[LayerGroup, PagedGroup]:
        found = {
            group: PagedGroup.of(self.geometry, group, self.full.layout, BLOCK_TOKENS)
            for group in self.geometry.full_groups
        }
        if (sliding := self.geometry.sliding) is not None and self.windows is not None:
            found[sliding] = PagedGroup.of(self.geometry, sliding, self.windows.layout, self.geometry.piece_tokens)
        return found

    def step(self, of: Pass, tokens: mx.array) -> "tuple[mx.array, Written] | None":
        """Logits [T, 1, vocabulary] of rows by a trace of the model, as of `caches` and `taken`; None where there is
        none, and nothing is done."""
        if self.traces is None or not self.traces.knows(of):
            return None
        before: Items[Items[mx.array]] = ()
        if self.geometry.states is not None:
            states = gathered([piece.sequence for piece in of.pieces])
            if states.empty:
                return None
            before = cast(list[list[mx.array]], states.layers)
        logits, after = self.traces.run(of, tokens, list(self._tables_of(of)), before)
        if after:
            self._settle(of, after)
        of.advance()
        return logits, Written(self, of, ())

    @staticmethod
    def _settle(of: Pass, arrays: Items[Items[mx.array | None]]) -> None:
        """The sequences have these states."""
        after = States(arrays)
        for row, (sequence, _) in enumerate(of.pieces):
            sequence.states, sequence.row = after, row

    def trace(self, model: Callable[[mx.array, Items[Any]], mx.array], **options: int) -> None:
        """Have passes over rows traced; `options` as of `Traces`."""
        states = self.geometry.states
        counts = (
            [(layer, len(arrays)) for layer, arrays in zip(states.layers, states.arrays, strict=True)] if states else []
        )
        self.traces = Traces(model, self._layers, [self._device(arena) for arena in self._arenas], counts, **options)

    def give_up_tracing(self, error: Exception) -> None:
        """Run the model's layers from now on: a pass failed, which may be because it was traced."""
        if self.traces is not None:
            self.traces = None
            log.warning("passes are not traced any more: %s", error)

    def _layers(self, of: Any, tables: Items[Any], before: PassTables | None = None) -> dict[int, BlockKVCache]:
        """The caches of layers with KV; `tables` are those of full attention, and of windows."""
        found = {}
        for group in self.geometry.groups:
            sliding = group is self.geometry.sliding
            for index, layer in enumerate(group.layers):
                found[layer] = BlockKVCache(
                    of, layer, self.codecs[layer], self._paged[group], _INDEX[index], tables[sliding],
                    before if sliding else None, one=self.kernels.one, few=self.kernels.few, latents=self.geometry.latents,
                )  # fmt: skip
        return found

    def _tables_of(self, of: Pass) -> Iterator[PassTables]:
        """The tables of rows, of full attention and of windows."""
        yield PassTables(of, self._device(self.full), lambda sequence: sequence.full)
        if self.windows is not None:
            window = cast(Callable[[Sequence], BlockTable], attrgetter("window"))
            for sequence, n in of.pieces:
                cast(WindowTable, sequence.window).slide(sequence.length + n)
            yield PassTables(of, self._device(self.windows), window)

    def taken(self, of: Pass, caches: Items[KVCache | StatesCache]) -> "Written":
        """The tokens of a pass are in its caches: they count. Returns what is still to be put into blocks."""
        if states := [cache.cache for cache in caches if isinstance(cache, StatesCache)]:
            self._settle(of, states)
        for sequence, n in of.pieces if self.by_arrays else ():
            if sequence.window is not None:
                sequence.window.slide(sequence.length + n)
        written = Written(self, of, caches)
        of.advance()
        return written


@dataclass(frozen=True, eq=False)
class Start:
    """What a sequence goes on from, and where: `tokens` that it has, `blocks` for all that it can grow to, and pieces of
    its own. The first `shared` tokens are in others' blocks. `cut` are a block that has some more, and the own one that
    they are copied to; `files` own blocks, and what they get; then there is a checkpoint, or the file of one. `arrays`:
    there is memory for K and V as arrays.
    """

    blocks: Items[int]
    pieces: Items[int] = ()
    tokens: int = 0
    shared: int = 0
    cut: tuple[int, int] | None = None
    files: Items[tuple[int, HostTensors]] = ()
    checkpoint: Checkpoint | None = None
    window_file: HostTensors | None = None
    window_surplus: int = 0
    arrays: bool = True


class Written:
    """K and V of a pass on their way into blocks of host memory. `state` is to be computed before `put`."""

    def __init__(self, store: KVStore, of: Pass, caches: Items[KVCache | StatesCache]) -> None:
        self._of = of
        self._starts = [(start, start + piece.tokens) for piece, start in zip(of.pieces, of.starts, strict=True)]
        self._groups: list[tuple[Arena, str, dict[str, mx.array], Callable[[Sequence], BlockTable | None]]] = []
        for group in store.geometry.groups:
            kept = [caches[layer] for layer in group.layers] if caches else []
            packed = [cache.packed for cache in kept if isinstance(cache, ArrayKVCache)]
            if not packed or None in packed:
                continue
            sides = list(zip(*packed, strict=True))
            stacked = {
                name: mx.stack([getattr(each, part) for each in sides["kv".index(side)]])
                for name, (side, part) in ((name, name.split(".")) for name in TENSORS)
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
                first = max(table.first, sequence.shared if table is sequence.full else 0)
                # [layers, rows, heads, n, width] of rows, and of one piece
                own = {
                    prefix + name: host[:, row : row + n, :, 0].swapaxes(1, 2) if self._of.rows else host[:, 0]
                    for name, host in hosts.items()
                }
                if not sequence.ended:
                    _put(arena, table, first, start, end, own)
                row += n
        self._groups = []


def _gathered(
    arena: HostArena, table: BlockTable, prefix: str, start: int, end: int, dtype: mx.Dtype, rows: Items[int]
) -> dict[str, mx.array]:
    """The six tensors [layers, kv_heads, tokens, width] of some layers and the tokens from `start` up to `end`."""
    views = [arena.layout.views(arena.words(block)) for block in table.of(start, end)]
    first = table.first + (start - table.first) // table.tokens * table.tokens
    found = {}
    for name in TENSORS:
        parts = [view[prefix + name][rows[0] : rows[-1] + 1] for view in views]
        whole = np.concatenate(parts, axis=2)[:, :, start - first : end - first]
        array = mx.array(whole)
        found[name] = array if name.endswith("weights") or array.dtype == dtype else array.view(dtype)
    return found


def _put(arena: HostArena, table: BlockTable, first: int, start: int, end: int, tensors: HostTensors) -> None:
    """Copy tensors of the tokens from `start` up to `end` to a table's blocks, from the token `first` on."""
    at = max(start, first)
    while at < end:
        inside = (at - table.first) % table.tokens
        stop = min(end, at + table.tokens - inside)
        own = {name: tensor[:, :, at - start : stop - start] for name, tensor in tensors.items()}
        arena.put([(table.at(at), inside, own)])
        at = stop


def _host(array: mx.array) -> Any:
    """An evaluated array as host memory; 16-bit floats as their bits."""
    return np.array(array.view(mx.uint16) if array.dtype.size == 2 else array, copy=False)
