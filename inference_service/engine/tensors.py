"""Between caches and the tensors of block and window files. Engine thread; what goes in and out is host memory."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.blockfile import TENSORS
from inference_service.engine.caches import KVBuffers, Quantized, QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.geometry import Caches, Geometry, LayerGroup

HostTensors = Mapping[str, npt.NDArray[np.generic]]
"""The six tensors of a file by name, [layers, kv_heads, tokens, width]; 16-bit floats as uint16."""


def extract_block(caches: Caches, geometry: Geometry, first: int, tokens: int) -> dict[str, bytes]:
    """A private copy of `tokens` tokens from `first` on: the full-attention layers, stacked, as a file's tensors."""
    return _copied([caches[layer].buffers for layer in geometry.full.layers], first, first + tokens)


def extract_window(caches: Caches, geometry: Geometry) -> tuple[dict[str, bytes], int]:
    """A private copy of what the sliding layers hold, and how many tokens that is."""
    assert geometry.sliding is not None
    buffers = [caches[layer].buffers for layer in geometry.sliding.layers]
    tokens = buffers[0].filled
    return _copied(buffers, 0, tokens), tokens


def assemble(blocks: Sequence[tuple[HostTensors, int]], capacity: int) -> dict[str, npt.NDArray[np.generic]]:
    """Blocks one after the other, the first n tokens of each, in buffers of `capacity` tokens. Any thread."""
    buffers = {}
    for name in TENSORS:
        like = blocks[0][0][name]
        buffer = np.zeros((*like.shape[:2], capacity, like.shape[3]), like.dtype)
        at = 0
        for tensors, tokens in blocks:
            buffer[:, :, at : at + tokens] = tensors[name][:, :, :tokens]
            at += tokens
        buffers[name] = buffer
    return buffers


def restore(full: HostTensors, tokens: int, geometry: Geometry, window: HostTensors | None = None) -> Caches:
    """Caches that hold `tokens` tokens, evaluated: copies of assembled blocks, and of the window before the end."""
    caches: dict[int, QuantizedKVCache | SlidingQuantizedKVCache] = {}
    for layer, (keys, values) in _layers(full, geometry.full, geometry.dtype):
        caches[layer] = QuantizedKVCache.restored(keys, values, tokens, geometry.bits, geometry.group_size)
    if geometry.sliding is not None and geometry.sliding.window is not None:
        assert window is not None, "a hybrid model resumes only where it has a window"
        for layer, kv in _layers(window, geometry.sliding, geometry.dtype):
            caches[layer] = SlidingQuantizedKVCache.restored(
                geometry.sliding.window, KVBuffers.of(*kv), tokens, geometry.bits, geometry.group_size
            )
    ordered = [caches[layer] for layer in range(geometry.layers)]
    mx.eval([cache.state for cache in ordered])
    return ordered


def _copied(buffers: Sequence[KVBuffers], start: int, end: int) -> dict[str, bytes]:
    copied = {}
    for name in TENSORS:
        side, part = name.split(".")
        stacked = mx.contiguous(mx.stack([_part(each, side, part)[0, :, start:end, :] for each in buffers]))
        if stacked.dtype.size == 2:
            stacked = stacked.view(mx.uint16)
        mx.eval(stacked)
        copied[name] = bytes(memoryview(cast(Any, stacked)))
    return copied


def _part(buffers: KVBuffers, side: str, part: str) -> mx.array:
    keys, values = buffers.both()
    array: mx.array = getattr(keys if side == "k" else values, part)
    return array


def _layers(tensors: HostTensors, group: LayerGroup, dtype: mx.Dtype) -> list[tuple[int, tuple[Quantized, Quantized]]]:
    def quantized(side: str, row: int) -> Quantized:
        weights, scales, biases = (
            mx.array(tensors[f"{side}.{part}"][row : row + 1]) for part in ("weights", "scales", "biases")
        )
        return Quantized(weights, scales.view(dtype), biases.view(dtype))

    return [(layer, (quantized("k", row), quantized("v", row))) for row, layer in enumerate(group.layers)]
