"""All KV memory of a model, and the caches for a call. Engine thread only."""

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from copy import copy
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, cast

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, HostBuffers, LayerGroup
from inference_service.engine.paged.arena import Arena, DeviceArena, HostArena, Reading
from inference_service.engine.paged.checkpoints import Checkpoints, Start
from inference_service.engine.paged.in_blocks import BlockKVCache, PassTables, slides_first
from inference_service.engine.paged.kernels import Kernels, LayerBlocks, PagedGroup
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.passes import ArrayKVCache, KVCache, Pass, Piece, StatesCache, settle, state_caches
from inference_service.engine.paged.sequence import (
    BlockTable,
    Checkpoint,
    Sequence,
    WindowTable,
    WorkingKV,
    gathered,
)
from inference_service.engine.paged.traces import Traces
from inference_service.engine.paged.writing import Home, Written

log = logging.getLogger(__name__)

_INDEX = [mx.array([index], dtype=mx.int32) for index in range(256)]


NO_KERNELS: Final = Kernels()

_MAKING: Final = 2.25
"""Dequantized, then rotated."""


class KVStore:
    """Without `codecs`, K and V are not centred."""

    def __init__(
        self,
        geometry: Geometry,
        blocks: int,
        pieces: int,
        codecs: Items[KVCodec] = (),
        segments: tuple[int | None, int | None] = (None, None),
        kernels: Kernels = NO_KERNELS,
    ) -> None:
        """`segments`: blocks, and pieces, allocated at once."""
        self.geometry = geometry
        self.codecs = dict(zip(geometry.kv_layers, codecs or geometry.codecs(), strict=True))
        self.full = Arena.of(BlockLayout(geometry.block_shapes(BLOCK_TOKENS)), blocks, segments[0])
        self.checkpoints = Checkpoints(geometry, pieces, segments[1])
        self.windows = self.checkpoints.windows
        self._homes = [Home(group, self.full, geometry.prefix(group)) for group in geometry.full_groups]
        if geometry.sliding is not None and self.windows is not None:
            self._homes.append(Home(geometry.sliding, self.windows, geometry.prefix(geometry.sliding)))
        self.kernels = kernels
        self.traces: Traces | None = None

    @property
    def nbytes(self) -> int:
        return self.full.nbytes + self.checkpoints.nbytes

    def close(self) -> None:
        self.full.close()
        self.checkpoints.close()
        self._end_traces()

    def release(self, blocks: Items[int], pieces: Items[int]) -> None:
        self.full.release(blocks)
        self.checkpoints.release(pieces)
        mx.clear_cache()

    def sequence(self, blocks: Items[int], pieces: Items[int] = ()) -> Sequence:
        self.full.take(blocks)
        sequence = Sequence(BlockTable(BLOCK_TOKENS, list(blocks)))
        self.checkpoints.begin(sequence, pieces)
        return sequence

    def started(self, start: Start) -> Sequence:
        """Raises MemoryError."""
        sequence = self.sequence(start.blocks, start.pieces)
        sequence.shared = start.shared
        if start.cut is not None:
            self.full.copy(*start.cut)
        self.full.put([(block, 0, tensors) for block, tensors in start.files])
        if start.checkpoint is not None:
            self.checkpoints.go_on(sequence, start.checkpoint, start.tokens)
        elif start.window_file is not None:
            self.checkpoints.load(sequence, start.window_file, start.tokens, start.window_surplus)
        sequence.length = start.tokens
        sequence.arrays = start.arrays
        if self.by_arrays and sequence.length and start.arrays:
            self.resume(sequence)
        return sequence

    def capture(self, sequence: Sequence) -> Checkpoint | None:
        return self.checkpoints.capture(sequence, last=True)

    def read_checkpoint(self, checkpoint: Checkpoint) -> Reading:
        return self.checkpoints.read(checkpoint)

    def read_block(self, block: int, tokens: int) -> Reading:
        return self.full.read(block, tokens)

    def host_buffers(self, block: int, tokens: int) -> HostBuffers | None:
        """None if it is not the host's memory. Any thread."""
        if not isinstance(self.full, HostArena):
            return None
        views = self.full.layout.views(self.full.words(block))
        return {name: list(view[:, :, :tokens]) for name, view in views.items()}

    def start_bytes(self, tokens: int) -> int:
        """Return a sequence's bytes besides blocks."""
        return self.geometry.array_bytes(tokens) if self.by_arrays else 0

    def growth(self, pieces: Items[Piece]) -> int:
        """Return a pass's bytes besides computing."""
        found = 0
        for sequence, n in pieces if self.by_arrays else ():
            for group in self.geometry.groups:
                if (working := sequence.working.get(group.layers[0])) is not None:
                    found += len(group.layers) * working.growth(n)
        return found

    def pass_bytes(self, sequence: Sequence) -> int:
        if not self.by_arrays or sequence.arrays:
            return 0
        return int(_MAKING * self.geometry.layer_bytes_per_token * sequence.length)

    @property
    def by_arrays(self) -> bool:
        return isinstance(self.full, HostArena)

    def resume(self, sequence: Sequence) -> None:
        """Make arrays of what is in blocks, lazily."""
        for home in self._homes:
            found = home.unpacked(sequence, home.group.layers, self.codecs.__getitem__, self.geometry.dtype)
            sequence.working |= zip(home.group.layers, found, strict=True)

    def forgo_arrays(self, sequence: Sequence) -> None:
        """All tokens must be in blocks."""
        sequence.arrays = False
        sequence.working.clear()

    def load(self, sequence: Sequence, layer: int) -> WorkingKV:
        """Return one layer's arrays, lazily."""
        home = next(each for each in self._homes if layer in each.group.layers)
        [working] = home.unpacked(sequence, [layer], self.codecs.__getitem__, self.geometry.dtype)
        return working

    def compute(self, network: Any, of: Pass, tokens: mx.array) -> tuple[mx.array, Written]:
        """Return the wanted logits [n, vocabulary] of tokens [T], lazily. The sequences count the tokens."""
        if (traced := self.step(of, tokens)) is not None:
            logits, written = traced
        else:
            caches = self.caches(of)
            ids = tokens[:, None] if of.rows else tokens[None]
            logits = network(ids, caches) if of.wanted is None else network.at(of.wanted, ids, caches)
            written = self.taken(of, caches)
        found = logits[:, 0] if of.rows else logits[0]
        return found if of.wanted is None or len(found) == len(of.wanted) else found[of.wanted], written

    def caches(self, of: Pass) -> list[KVCache | StatesCache]:
        kv = self._over_arrays(of) if self.by_arrays else self._in_blocks(of)
        found: dict[int, Any] = dict(kv) | state_caches(of, self.geometry.states)
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

    def step(self, of: Pass, tokens: mx.array) -> tuple[mx.array, Written] | None:
        """Return logits [T, 1, vocabulary] from a trace; None without one."""
        if self.traces is None or not self.traces.knows(of):
            return None
        before: Items[Items[mx.array]] = ()
        if self.geometry.in_order:
            sequences = [piece.sequence for piece in of.pieces]
            if any(each.states is None for each in sequences) or (states := gathered(sequences)).empty:
                return None
            before = cast(list[list[mx.array]], states.layers)
        logits, after = self.traces.run(of, tokens, list(self._tables_of(of)), before)
        found = settle(of, after)
        of.advance()
        return logits, Written((), of, (), found)

    def trace(self, model: Callable[[mx.array, Items[Any]], mx.array]) -> None:
        states = self.geometry.states
        arenas = [self._device(arena) for arena in (self.full, self.windows) if arena is not None]
        together = self.kernels.few and not self.geometry.latents
        groups = (self.geometry.full_groups, [group for group in self.geometry.groups if group.window])
        heads = [sorted({self.geometry.heads // each.kv_heads for each in of if together}) for of in groups]
        self.traces = Traces(model, self._layers, arenas, states.layers if states else (), heads[: len(arenas)])

    def give_up_tracing(self, error: Exception) -> None:
        """A traced pass failed."""
        if self.traces is not None:
            self._end_traces()
            log.warning("passes are not traced any more: %s", error)

    def _end_traces(self) -> None:
        if self.traces is not None:
            self.traces.close()
        self.traces = None

    def _layers(self, of: Any, tables: Items[Any], before: PassTables | None = None) -> dict[int, BlockKVCache]:
        """`tables`: of full attention, then of windows."""
        found = {}
        for group in self.geometry.groups:
            sliding = group is self.geometry.sliding
            for index, layer in enumerate(group.layers):
                blocks = LayerBlocks(self._paged[group], _INDEX[index], self.codecs[layer], tables[sliding].rows)
                found[layer] = BlockKVCache(
                    of, layer, blocks, tables[sliding], before if sliding else None, self.kernels,
                    latents=self.geometry.latents,
                )  # fmt: skip
        return found

    def _tables_of(self, of: Pass) -> Iterator[PassTables]:
        """Yield those of full attention, then of windows, slid."""
        yield PassTables(of, self._device(self.full), lambda sequence: sequence.full)
        if self.windows is not None:
            window = cast(Callable[[Sequence], BlockTable], attrgetter("window"))
            for sequence, n in of.pieces:
                cast(WindowTable, sequence.window).slide(sequence.length + n)
            yield PassTables(of, self._device(self.windows), window)

    def taken(self, of: Pass, caches: Items[KVCache | StatesCache]) -> Written:
        """Count a pass's tokens; return what is to be written."""
        states = settle(of, [cache.cache for cache in caches if isinstance(cache, StatesCache)])
        for sequence, n in of.pieces if self.by_arrays else ():
            if sequence.window is not None:
                sequence.window.slide(sequence.length + n)
        written = Written(self._homes, of, caches, states)
        of.advance()
        return written
