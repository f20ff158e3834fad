"""Between a sequence's caches, the pool's arenas, and the tensors of files. Engine thread only."""

from collections.abc import Sequence

import mlx.core as mx

from agentmem.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.arenas import Arena, HostTensors, host_bytes, part_of
from inference_service.engine.caches import KVBuffers, QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.geometry import Caches, Geometry, LayerGroup


class Arenas:
    """All KV memory of a model: blocks of its full-attention layers, pieces of its sliding layers' windows."""

    def __init__(self, geometry: Geometry, blocks: int, pieces: int) -> None:
        self._geometry = geometry
        self._full = Arena(geometry, geometry.full, blocks, BLOCK_TOKENS)
        self._sliding: Arena | None = None
        if geometry.sliding is not None:
            self._sliding = Arena(geometry, geometry.sliding, pieces, geometry.piece_tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas."""
        return self._full.nbytes + (self._sliding.nbytes if self._sliding else 0)

    def warm_up(self) -> None:
        """Have the backend compile what the arenas need, before anything is kept in them. May take seconds."""
        for arena in filter(None, (self._full, self._sliding)):
            arena.warm_up()

    def close(self) -> None:
        """Give the memory back. Nobody may use the arenas any more."""
        for arena in filter(None, (self._full, self._sliding)):
            arena.close()

    def write(self, caches: Caches, first_block: int, blocks: Sequence[int], pieces: Sequence[int]) -> None:
        """Copy a sequence's blocks from `first_block` on into `blocks`, and its sliding layers into `pieces`."""
        self._full.write(_buffers(caches, self._geometry.full), first_block, blocks)
        if self._sliding is not None and self._geometry.sliding is not None:
            self._sliding.write(_buffers(caches, self._geometry.sliding), 0, pieces)

    def caches(
        self,
        tokens: int,
        blocks: Sequence[int],
        files: Sequence[HostTensors],
        window: "Sequence[KVBuffers]" = (),
        room: int = 0,
    ) -> Caches:
        """Private, evaluated caches that hold `tokens` tokens: of `blocks`, and then of block files.

        `window` are the sliding layers' buffers before that position. Those of the full-attention layers have room for
        `room` tokens in all: to grow while a prompt is computed would copy all that was restored once more.
        """
        geometry = self._geometry
        caches: dict[int, QuantizedKVCache | SlidingQuantizedKVCache] = {}
        layers = self._full.gather(blocks, tokens, files, room)
        for layer, buffers in zip(geometry.full.layers, layers, strict=True):
            caches[layer] = QuantizedKVCache.restored(buffers, geometry.bits, geometry.group_size)
        if geometry.sliding is not None and geometry.sliding.window is not None:
            for layer, buffers in zip(geometry.sliding.layers, window, strict=True):
                caches[layer] = SlidingQuantizedKVCache.restored(
                    geometry.sliding.window, buffers, tokens, geometry.bits, geometry.group_size
                )
        return [caches[layer] for layer in range(geometry.layers)]

    def window(self, pieces: Sequence[int], tokens: int, surplus: int = 0) -> list[KVBuffers]:
        """Private, evaluated buffers of a window of `tokens` tokens without its last `surplus`, per sliding layer."""
        assert self._sliding is not None
        return self._sliding.gather(pieces, tokens - surplus)

    def window_of_file(self, file: HostTensors, surplus: int = 0) -> list[KVBuffers]:
        """The same from a window file."""
        assert self._sliding is not None
        return self._sliding.upload(file, surplus)

    def read_block(self, block: int, tokens: int) -> dict[str, bytes]:
        """A private copy of a block, as the tensors of a file."""
        return self._full.read([block], tokens)

    def read_window(self, pieces: Sequence[int], tokens: int) -> dict[str, bytes]:
        """A private copy of a window, as the tensors of a file."""
        assert self._sliding is not None
        return self._sliding.read(pieces, tokens)


def window_bytes(window: Sequence[KVBuffers]) -> dict[str, bytes]:
    """A private copy of a window that is in buffers, one per sliding layer, as the tensors of a file."""
    end = window[0].filled
    return {name: host_bytes(mx.concatenate([part_of(each, name)[:, :, :end] for each in window])) for name in TENSORS}


def _buffers(caches: Caches, group: LayerGroup) -> list[KVBuffers]:
    return [caches[layer].buffers for layer in group.layers]
