"""The pool's memory: a model's quantized KV in blocks, and its way to caches and to the tensors of files. Engine thread
only.

An arena has one array per tensor and segment, [blocks, layers, kv_heads, block_tokens, width], so that a block is one
piece of memory, and a layer of many blocks one gather. A segment is taken when something is first written there, and
given back when the pool says so; what is read where there is none raises LookupError. No lazy array over an arena
outlives a call: a scatter under a live view would copy the whole segment.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import mlx.core as mx
import numpy as np

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.sizes import byte_size
from inference_service.engine.caches import KVBuffers, QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.caches.states import StateCache
from inference_service.engine.checkpoints import Checkpoint, States, state_tensors, states_of, uploaded_states
from inference_service.engine.codec import KVCodec
from inference_service.engine.device import free_bytes
from inference_service.engine.geometry import MLX_DTYPE, Caches, Geometry, HostTensors, LayerCache, LayerGroup
from inference_service.engine.preallocating import PreallocatedBuffers
from inference_service.engine.quantization import Quantized
from inference_service.engine.uploading import host_bytes, uploaded


class Arena:
    """`blocks` blocks of `block_tokens` tokens for the layers of `group`, `segment_blocks` of them in a segment.

    By default all are in one. The first segment is taken at once. Raises MemoryError where the device has less, and so
    does `write`.
    """

    def __init__(
        self, geometry: Geometry, group: LayerGroup, blocks: int, block_tokens: int, segment_blocks: int | None = None
    ) -> None:
        self.group = group
        self.block_tokens = block_tokens
        self._prefix = geometry.prefix(group)
        self._shapes = geometry.shapes(group, block_tokens)
        self._dtypes = {name: dtype for name, (dtype, _) in self._shapes.items()}
        self._blocks = blocks
        self._segment_blocks = segment_blocks or max(1, blocks)
        self._segments: dict[int, dict[str, mx.array]] = {}
        self._take(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that are taken."""
        return sum(int(array.nbytes) for arrays in self._segments.values() for array in arrays.values())

    def close(self) -> None:
        """Release the memory. The arena must not be used afterwards."""
        self._segments.clear()

    def release(self, segments: Iterable[int]) -> None:
        """Give back the memory of segments in which nothing counts."""
        for segment in segments:
            self._segments.pop(segment, None)

    def _take(self, segment: int) -> None:
        """Take a segment's memory, unless it is there already."""
        if segment in self._segments:
            return
        blocks = min(self._segment_blocks, self._blocks - segment * self._segment_blocks)
        shapes = {name: ((blocks, *shape), MLX_DTYPE[dtype]) for name, (dtype, shape) in self._shapes.items()}
        nbytes = sum(math.prod(shape) * dtype.size for shape, dtype in shapes.values())
        if nbytes > free_bytes():
            mx.clear_cache()
            if nbytes > (free := free_bytes()):
                raise MemoryError(f"a segment of the pool takes {byte_size(nbytes)}, and {byte_size(free)} are free")
        arrays = {name: mx.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
        mx.eval(arrays)
        self._segments[segment] = arrays

    def _runs(self, blocks: Iterable[int]) -> Iterator[tuple[dict[str, mx.array], list[int]]]:
        """The tensors of one segment after the other, and which of its blocks are next in a row of blocks."""
        for segment, run in itertools.groupby(blocks, self._segment_of):
            if segment not in self._segments:
                raise LookupError(f"segment {segment} of the pool has no memory: nothing was written there")
            first = segment * self._segment_blocks
            yield self._segments[segment], [block - first for block in run]

    def _segment_of(self, block: int) -> int:
        return block // self._segment_blocks

    def write(self, buffers: Sequence[KVBuffers], start: int, blocks: Sequence[int]) -> None:
        """Copy what buffers hold from token `start` on into `blocks`.

        `buffers` [1, kv_heads, capacity, width] are those of each layer of the group.

        The last one may be partly filled; what is behind its tokens is garbage.
        """
        if not blocks:
            return
        for segment in sorted(set(map(self._segment_of, blocks))):
            self._take(segment)
        filled = buffers[0].filled
        for arrays, run in self._runs(blocks):
            end = start + len(run) * self.block_tokens
            wanted = mx.array(run)
            for name, array in arrays.items():
                for row, each in enumerate(buffers):
                    array[wanted, row] = _split(
                        each.part(name.removeprefix(self._prefix))[0, :, start : min(end, filled)], self.block_tokens
                    )
                mx.eval(array)  # One tensor after the other: what is transient is one tensor's share.
            start = end

    def gather(
        self, blocks: Sequence[int], tokens: int, more: Sequence[HostTensors] = (), room: int = 0
    ) -> list[KVBuffers]:
        """Private, evaluated buffers [1, kv_heads, capacity, width] of `tokens` tokens, per layer of the group.

        They come from `blocks`, one after the other, and then from the blocks of files in `more`; the buffers have room
        for at least one token more, and for `room` tokens in all.
        """
        count = _blocks(tokens, room, self.block_tokens)
        warm = uploaded(more, self._dtypes, (count - len(blocks)) * self.block_tokens) if more else []
        if more and not blocks:
            return [self._buffers(parts, tokens) for parts in warm]
        spare = [] if more else [blocks[-1] if blocks else 0] * (count - len(blocks))
        runs = [(arrays, self._places(run)) for arrays, run in self._runs([*blocks, *spare])]
        layers = []
        for row in range(len(self.group.layers)):
            parts = {}
            for name in self._dtypes:
                found = [_taken(arrays[name], wanted[row]) for arrays, wanted in runs]
                found += [warm[row][name]] if more else []
                parts[name] = found[0] if len(found) == 1 else mx.concatenate(found, axis=2)
            layers.append(self._buffers(parts, tokens))
        mx.eval([layer.arrays for layer in layers])
        return layers

    def take(self, buffers: PreallocatedBuffers, blocks: Sequence[int], tokens: int) -> list[KVBuffers]:
        """The layers' share of buffers that files were read into; `blocks` are copied to their beginning."""
        layers = buffers.take(list(self._dtypes))
        start = 0
        for arrays, run in self._runs(blocks):
            wanted, end = self._places(run), start + len(run) * self.block_tokens
            for row, parts in enumerate(layers):
                for name, array in parts.items():
                    array[:, :, start:end] = _taken(arrays[name], wanted[row])
            mx.eval(layers)
            start = end
        return [self._buffers(parts, tokens) for parts in layers]

    def upload(self, file: HostTensors, surplus: int = 0) -> list[KVBuffers]:
        """Private, evaluated buffers [1, kv_heads, tokens, width] of a file, less `surplus` tokens, per layer."""
        tokens = file[next(iter(self._dtypes))].shape[2]
        return [self._buffers(parts, tokens - surplus) for parts in uploaded([file], self._dtypes, tokens)]

    def read(self, blocks: Sequence[int], tokens: int) -> dict[str, bytes]:
        """A private copy of the first `tokens` tokens in `blocks`, as the tensors of a file by name."""
        pieces = [(arrays, block) for arrays, run in self._runs(blocks) for block in run]
        copied = {}
        for name in self._dtypes:
            whole = mx.concatenate([arrays[name][block] for arrays, block in pieces], axis=2)[:, :, :tokens]
            copied[name] = host_bytes(whole)
        return copied

    def warm_up(self) -> None:
        """Have the backend compile what `gather` and `write` need: a block of an arena that is still empty goes round.

        On some backends that takes seconds, which the first turn would wait for.
        """
        self.write(self.gather([0], self.block_tokens - 1), 0, [0])

    def _buffers(self, parts: Mapping[str, mx.array], tokens: int) -> KVBuffers:
        k, v = (Quantized(*(parts[f"{self._prefix}{side}.{part}"] for part in Quantized._fields)) for side in "kv")
        return KVBuffers(k, v, tokens)

    def _places(self, blocks: Sequence[int]) -> mx.array:
        """Which of a segment's pieces of one head and block are those of `blocks`, [layers, kv_heads, blocks].

        In this order the gather itself puts each head's blocks in a row. One index instead of one per axis: for each
        number of them a backend that compiles its kernels makes others, which takes seconds.
        """
        layers, heads = len(self.group.layers), self.group.kv_heads
        rows = np.arange(layers)[:, None, None] * heads + np.arange(heads)[:, None]
        return mx.array((np.array(blocks, np.int64) * (layers * heads) + rows).astype(np.int32))


def _blocks(tokens: int, room: int, block_tokens: int) -> int:
    """How many blocks buffers have that hold `tokens` tokens, one more, and `room` in all."""
    return -(-max(tokens + 1, room) // block_tokens)


def _taken(array: mx.array, places: mx.array) -> mx.array:
    """One layer of a tensor's blocks at these places [kv_heads, blocks], as [1, kv_heads, tokens, width]."""
    found = mx.take(array.reshape(-1, *array.shape[3:]), places, axis=0)
    return found.reshape(1, found.shape[0], -1, found.shape[3])


def _split(tokens: mx.array, block_tokens: int) -> mx.array:
    """[kv_heads, n, width] as [blocks, kv_heads, block_tokens, width]; the last block is filled up with zeros."""
    heads, n, width = tokens.shape
    if missing := -n % block_tokens:
        tokens = mx.pad(tokens, [(0, 0), (0, missing), (0, 0)])
    return tokens.reshape(heads, -1, block_tokens, width).swapaxes(0, 1)


class Arenas:
    """All memory of a model's agents: blocks of its full-attention layers, pieces of its sliding layers' windows, and
    recurrent layers' states, which go with a piece. States take no memory before there are some.
    """

    def __init__(
        self,
        geometry: Geometry,
        blocks: int,
        pieces: int,
        codecs: Sequence[KVCodec] = (),
        segments: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """`codecs` are the layers' own, which restored caches go on with; without, K and V are not centred. `segments`
        is how many blocks and how many pieces are taken at once; by default all."""
        self._geometry = geometry
        self._codecs = dict(zip(geometry.kv_layers, codecs or geometry.codecs(), strict=True))
        self._full = [Arena(geometry, group, blocks, BLOCK_TOKENS, segments[0]) for group in geometry.full_groups]
        self._all = list(self._full)
        if geometry.sliding is not None:
            self._all.append(Arena(geometry, geometry.sliding, pieces, geometry.piece_tokens, segments[1]))
        self._states: dict[int, States] = {}
        self._segment_pieces = segments[1] or max(1, pieces)

    @property
    def sliding(self) -> Arena:
        """The windows' pieces, of a model that has sliding layers."""
        return self._all[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all that is taken: of the arenas, and of the states that are there."""
        states = sum(int(array.nbytes) for layers in self._states.values() for layer in layers for array in layer)
        return sum(arena.nbytes for arena in self._all) + states

    def warm_up(self) -> None:
        """Have the backend compile what the arenas need, before anything is kept in them. May take seconds."""
        for arena in self._all:
            arena.warm_up()

    def close(self) -> None:
        """Release the memory. The arenas must not be used afterwards."""
        for arena in self._all:
            arena.close()
        self._states.clear()

    def release(self, full: Sequence[int], pieces: Sequence[int]) -> None:
        """Give back the memory of segments of the blocks' arenas, and of the pieces', in which nothing counts."""
        for arena in self._all:
            arena.release(full if arena in self._full else pieces)
        for piece in [piece for piece in self._states if piece // self._segment_pieces in pieces]:
            del self._states[piece]
        mx.clear_cache()

    def write(self, caches: Caches, first_block: int, blocks: Sequence[int], pieces: Sequence[int]) -> None:
        """Copy a sequence's blocks from `first_block` on into `blocks`, and the checkpoint at its end into `pieces`."""
        for arena in self._full:
            arena.write([caches[layer].buffers for layer in arena.group.layers], first_block * BLOCK_TOKENS, blocks)
        if pieces:
            windows = [cache for cache in caches if isinstance(cache, SlidingQuantizedKVCache)]
            start = windows[0].buffers.filled - windows[0].kept if windows else 0
            self._write_checkpoint([each.buffers for each in windows], start, states_of(caches), pieces)

    def write_checkpoint(self, checkpoint: Checkpoint, pieces: Sequence[int]) -> None:
        """Copy a checkpoint's window into `pieces`; its states are shared."""
        self._write_checkpoint(checkpoint.window, 0, checkpoint.states, pieces)

    def _write_checkpoint(self, window: Sequence[KVBuffers], start: int, states: States, pieces: Sequence[int]) -> None:
        if self._geometry.sliding is not None:
            self.sliding.write(window, start, pieces)
        if self._geometry.states is not None:
            mx.eval(states)
            self._states[pieces[0]] = states

    def read_block(self, block: int, tokens: int) -> dict[str, bytes]:
        """A private copy of the first `tokens` tokens in a block, as the tensors of a file by name."""
        return {name: data for arena in self._full for name, data in arena.read([block], tokens).items()}

    def checkpoint(self, pieces: Sequence[int], tokens: int, position: int) -> Checkpoint:
        """That in `pieces`, of whose window the first `tokens` tokens end at `position`; states are shared."""
        window = self.sliding.gather(pieces, tokens) if self._geometry.sliding else ()
        states = [[array[...] for array in layer] for layer in self._states.get(pieces[0], ())]
        mx.eval(states)
        return Checkpoint(position, window, states)

    def uploaded(self, file: HostTensors, surplus: int, position: int) -> Checkpoint:
        """That of a file, less the last `surplus` tokens of its window."""
        window = self.sliding.upload(file, surplus) if self._geometry.sliding else ()
        return Checkpoint(position, window, uploaded_states(file, self._geometry.states))

    def read(self, pieces: Sequence[int], tokens: int) -> dict[str, bytes]:
        """A private copy of the checkpoint in `pieces`, with so many tokens in its window, as the tensors of a file."""
        window = self.sliding.read(pieces, tokens) if self._geometry.sliding else {}
        return window | state_tensors(self._states.get(pieces[0], ()), self._geometry.states)

    def preallocate(self, tokens: int, room: int = 0) -> PreallocatedBuffers:
        """Buffers to read block files into for `caches`, with room for one token more and for `room` tokens in all.

        For a model with full attention, on a device whose memory is the host's.
        """
        capacity = _blocks(tokens, room, BLOCK_TOKENS) * BLOCK_TOKENS
        return PreallocatedBuffers(self._geometry.block_shapes(capacity), capacity)

    def caches(
        self,
        tokens: int,
        blocks: Sequence[int],
        files: Sequence[HostTensors],
        checkpoint: Checkpoint | None = None,
        room: int = 0,
        buffers: PreallocatedBuffers | None = None,
    ) -> Caches:
        """Private, evaluated caches that hold `tokens` tokens: of `blocks`, and then of block files.

        Or files were read into `buffers`, which have zeros behind them: then `files` are none, and only `blocks` are
        copied.

        `checkpoint` is at that position, for a model that needs one. Buffers of the full-attention layers have room for
        `room` tokens in all: to grow while a prompt is computed would copy all that was restored once more.
        """
        geometry = self._geometry
        window, states = (checkpoint.window, checkpoint.states) if checkpoint else ((), ())
        caches: dict[int, LayerCache] = {}
        for arena in self._full:
            full = arena.take(buffers, blocks, tokens) if buffers else arena.gather(blocks, tokens, files, room)
            for layer, each in zip(arena.group.layers, full, strict=True):
                caches[layer] = QuantizedKVCache.restored(each, self._codecs[layer])
        for layer, each in zip(geometry.sliding.layers if geometry.sliding else (), window, strict=True):
            caches[layer] = SlidingQuantizedKVCache.restored(geometry.window, each, tokens, self._codecs[layer])
        for layer, arrays in zip(geometry.states.layers if geometry.states else (), states, strict=True):
            caches[layer] = StateCache(arrays, tokens)
        return [caches[layer] for layer in sorted(caches)]
