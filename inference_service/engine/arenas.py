"""The pool's memory: the Q4 KV of one layer group in blocks, laid out like the files. Engine thread only.

One array per tensor, [blocks, layers, kv_heads, block_tokens, width], so that a block is one piece of memory, and a
layer of many blocks one gather. Nothing lazy over an arena outlives a call: a scatter under a live view would copy the
whole arena.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.caches import KVBuffers, Quantized
from inference_service.engine.geometry import SAFETENSORS_DTYPE, Geometry, LayerGroup
from inference_service.engine.uploading import uploaded

HostTensors = Mapping[str, npt.NDArray[np.generic]]
"""The six tensors of a file by name, [layers, kv_heads, tokens, width]; 16-bit floats as uint16."""

_DTYPES = {name: dtype for dtype, name in SAFETENSORS_DTYPE.items()}


class Arena:
    """`blocks` blocks of `block_tokens` tokens for the layers of `group`, taken at once."""

    def __init__(self, geometry: Geometry, group: LayerGroup, blocks: int, block_tokens: int) -> None:
        self.group = group
        self.block_tokens = block_tokens
        shapes = geometry.shapes(group, block_tokens)
        self._dtypes = {name: dtype for name, (dtype, _) in shapes.items()}
        self._arrays: dict[str, mx.array] = {
            name: mx.zeros((blocks, *shape), dtype=_DTYPES[dtype]) for name, (dtype, shape) in shapes.items()
        }
        mx.eval(self._arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self._arrays.values())

    def close(self) -> None:
        """Give the memory back. Nobody may use the arena any more."""
        self._arrays.clear()

    def write(self, buffers: Sequence[KVBuffers], first_block: int, blocks: Sequence[int]) -> None:
        """Copy blocks `first_block`, `first_block` + 1, … of a sequence, given per layer of the group, into `blocks`.

        The last one may be partly filled; what is behind its tokens is garbage.
        """
        if not blocks:
            return
        start = first_block * self.block_tokens
        end = min(start + len(blocks) * self.block_tokens, buffers[0].filled)
        wanted = mx.array(list(blocks))
        for name, array in self._arrays.items():
            for row, each in enumerate(buffers):
                array[wanted, row] = _split(part_of(each, name)[0, :, start:end], self.block_tokens)
            mx.eval(array)  # One tensor after the other: what is transient is one tensor's share.

    def gather(
        self, blocks: Sequence[int], tokens: int, more: Sequence[HostTensors] = (), room: int = 0
    ) -> list[KVBuffers]:
        """Private, evaluated buffers of `tokens` tokens, per layer of the group.

        They come from `blocks`, one after the other, and then from the blocks of files in `more`; the buffers have room
        for at least one token more, and for `room` tokens in all.
        """
        count = -(-max(tokens + 1, room) // self.block_tokens)
        warm = uploaded(more, self._dtypes, (count - len(blocks)) * self.block_tokens) if more else []
        if more and not blocks:
            return [_buffers(parts, tokens) for parts in warm]
        spare = [] if more else [0] * (count - len(blocks))
        wanted = self._places([*blocks, *spare])
        layers = []
        for row in range(len(self.group.layers)):
            parts = {}
            for name, array in self._arrays.items():
                found = mx.take(array.reshape(-1, *array.shape[3:]), wanted[row], axis=0)
                whole = found.reshape(1, found.shape[0], -1, found.shape[3])
                parts[name] = mx.concatenate([whole, warm[row][name]], axis=2) if more else whole
            layers.append(_buffers(parts, tokens))
        mx.eval([layer.arrays for layer in layers])
        return layers

    def upload(self, file: HostTensors, surplus: int = 0) -> list[KVBuffers]:
        """Private, evaluated buffers of one file of any length without its last `surplus` tokens, per layer."""
        tokens = file["k.weights"].shape[2]
        return [_buffers(parts, tokens - surplus) for parts in uploaded([file], self._dtypes, tokens)]

    def read(self, blocks: Sequence[int], tokens: int) -> dict[str, bytes]:
        """A private copy of the first `tokens` tokens in `blocks`, as the tensors of a file."""
        copied = {}
        for name, array in self._arrays.items():
            whole = mx.concatenate([array[block] for block in blocks], axis=2)[:, :, :tokens]
            copied[name] = host_bytes(whole)
        return copied

    def warm_up(self) -> None:
        """Have the backend compile what `gather` and `write` need: a block of an arena that is still empty goes round.

        On some backends that takes seconds, which the first turn would wait for.
        """
        self.write(self.gather([0], self.block_tokens - 1), 0, [0])

    def _places(self, blocks: Sequence[int]) -> mx.array:
        """Which of a tensor's pieces of one head and block are those of `blocks`, [layers, kv_heads, blocks].

        In this order the gather itself puts each head's blocks in a row. One index instead of one per axis: for each
        number of them a backend that compiles its kernels makes others, which takes seconds.
        """
        layers, heads = len(self.group.layers), self.group.kv_heads
        rows = np.arange(layers)[:, None, None] * heads + np.arange(heads)[:, None]
        return mx.array((np.array(blocks, np.int64) * (layers * heads) + rows).astype(np.int32))


def part_of(buffers: KVBuffers, name: str) -> mx.array:
    """The array that a file calls `name` ("k.weights", …), [1, kv_heads, capacity, width]."""
    side, part = name.split(".")
    keys, values = buffers.both()
    array: mx.array = getattr(keys if side == "k" else values, part)
    return array


def host_bytes(array: mx.array) -> bytes:
    """A private copy of an array's bytes in host memory."""
    array = mx.contiguous(array)
    if array.dtype.size == 2:
        array = array.view(mx.uint16)
    mx.eval(array)
    return bytes(memoryview(cast(Any, array)))


def _split(tokens: mx.array, block_tokens: int) -> mx.array:
    """[kv_heads, n, width] as [blocks, kv_heads, block_tokens, width]; the last block is filled up with zeros."""
    heads, n, width = tokens.shape
    if missing := -n % block_tokens:
        tokens = mx.pad(tokens, [(0, 0), (0, missing), (0, 0)])
    return tokens.reshape(heads, -1, block_tokens, width).swapaxes(0, 1)


def _buffers(parts: Mapping[str, mx.array], tokens: int) -> KVBuffers:
    return KVBuffers(_quantized(parts, "k"), _quantized(parts, "v"), tokens)


def _quantized(parts: Mapping[str, mx.array], side: str) -> Quantized:
    return Quantized(parts[f"{side}.weights"], parts[f"{side}.scales"], parts[f"{side}.biases"])
