"""Between caches and the tensors of block files. Engine thread; what goes in and out is host memory."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.blockfile import TENSORS
from inference_service.engine.cache import Quantized, QuantizedKVCache
from inference_service.engine.generation import Caches
from inference_service.engine.geometry import Geometry

HostTensors = Mapping[str, npt.NDArray[np.generic]]
"""The six tensors of a block file by name, [layers, kv_heads, tokens, width]; 16-bit floats as uint16."""


def extract(caches: Caches, first: int, tokens: int) -> dict[str, bytes]:
    """A private copy of `tokens` tokens from `first` on, all layers stacked, as the bytes of a block file's tensors."""
    copied = {}
    for name in TENSORS:
        side, part = name.split(".")
        layers = [_part(cache, side, part)[0, :, first : first + tokens, :] for cache in caches]
        stacked = mx.contiguous(mx.stack(layers))
        if stacked.dtype.size == 2:
            stacked = stacked.view(mx.uint16)
        mx.eval(stacked)
        copied[name] = bytes(memoryview(cast(Any, stacked)))
    return copied


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


def restore(buffers: HostTensors, tokens: int, geometry: Geometry) -> Caches:
    """Caches over copies of assembled buffers, evaluated."""

    def quantized(side: str, layer: int) -> Quantized:
        weights = mx.array(buffers[f"{side}.weights"][layer : layer + 1])
        scales, biases = (
            mx.array(buffers[f"{side}.{part}"][layer : layer + 1]).view(geometry.dtype) for part in ("scales", "biases")
        )
        return Quantized(weights, scales, biases)

    caches = [
        QuantizedKVCache.restored(
            quantized("k", layer), quantized("v", layer), tokens, geometry.bits, geometry.group_size
        )
        for layer in range(geometry.layers)
    ]
    mx.eval([cache.state for cache in caches])
    return caches


def _part(cache: QuantizedKVCache, side: str, part: str) -> mx.array:
    quantized = cache.keys if side == "k" else cache.values
    assert quantized is not None
    array: mx.array = getattr(quantized, part)
    return array
