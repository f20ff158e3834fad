"""What tests of arenas share: a geometry, sequences of any bits, and these as files and buffers have them."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS, TENSORS
from inference_service.engine.arenas import Arena
from inference_service.engine.caches import KVBuffers
from inference_service.engine.geometry import Geometry, HostTensors, LayerGroup
from inference_service.engine.quantization import FOUR_BITS, Quantized

BLOCKS, PIECES = 9, 12
SEGMENT = 4
"""Blocks of a segment: a few of them, of which the last is smaller."""


def geometry(dtype: mx.Dtype = mx.bfloat16, heads: int = 2, window: int = 64) -> Geometry:
    """Three layers with full attention and two with a window between them; V is wider than K."""
    full, sliding = LayerGroup((0, 2, 4), heads, 64, 128), LayerGroup((1, 3), heads, 128, 64, window)
    return Geometry(4, dtype, FOUR_BITS, full, sliding)


SHAPES = [(mx.float32, 2), (mx.bfloat16, 2), (mx.bfloat16, 1), (mx.float32, 3)]
shapes = pytest.mark.parametrize(("dtype", "heads"), SHAPES, ids=[f"{str(d)[9:]}-{h}" for d, h in SHAPES])
CAST = {mx.float32: np.uint32, mx.bfloat16: np.uint16, mx.float16: np.uint16}


def random_tensors(geometry: Geometry, group: LayerGroup, tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Any bits, NaNs too, in the layout of a file: [layers, kv_heads, tokens, width]."""
    dice = np.random.default_rng(seed)
    return {
        name: dice.integers(0, 1 << 32, shape, dtype=np.uint32).astype(
            np.uint32 if dtype == "U32" else CAST[geometry.dtype]
        )
        for name, (dtype, shape) in geometry.shapes(group, tokens).items()
    }


def buffers_of(geometry: Geometry, tensors: dict[str, np.ndarray], garbage: int = 5) -> list[KVBuffers]:
    """A sequence's buffers that hold these bits, and garbage behind them."""
    layers = []
    tokens = tensors["k.weights"].shape[2]
    for layer in range(tensors["k.weights"].shape[0]):
        parts = {}
        for name, bits in tensors.items():
            padded = np.pad(bits[layer : layer + 1], [(0, 0), (0, 0), (0, garbage), (0, 0)], constant_values=77)
            array = mx.array(padded)
            parts[name] = array if name.endswith("weights") else array.view(geometry.dtype)
        keys, values = (Quantized(*(parts[n] for n in TENSORS if n.startswith(side))) for side in "kv")
        layers.append(KVBuffers(keys, values, tokens))
    mx.eval([layer.arrays for layer in layers])
    return layers


def bits(array: mx.array) -> np.ndarray:
    return np.array(array.view({4: mx.uint32, 2: mx.uint16}[array.dtype.size]))


def held(buffers: Sequence[KVBuffers]) -> dict[str, np.ndarray]:
    """The bits of what the buffers hold, garbage left out."""
    return {name: np.concatenate([bits(each.part(name))[:, :, : each.filled] for each in buffers]) for name in TENSORS}


def cut(tensors: dict[str, np.ndarray], tokens: int, first: int = 0) -> dict[str, np.ndarray]:
    return {name: array[:, :, first:tokens] for name, array in tensors.items()}


def as_arrays(data: dict[str, bytes], geometry: Geometry, group: LayerGroup, tokens: int) -> dict[str, np.ndarray]:
    """Bytes as bits in the layout of a file."""
    return {
        name: np.frombuffer(data[name], np.uint32 if dtype == "U32" else CAST[geometry.dtype]).reshape(shape)
        for name, (dtype, shape) in geometry.shapes(group, tokens).items()
    }


def as_file(tensors: dict[str, np.ndarray], geometry: Geometry) -> HostTensors:
    """As `read_block` gives it: 32-bit floats as such, 16-bit floats as uint16."""
    float32 = geometry.dtype == mx.float32
    return {
        name: array.view(np.float32) if float32 and not name.endswith("weights") else array
        for name, array in tensors.items()
    }


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return list(found) == list(TENSORS) and all(np.array_equal(found[name], wanted[name]) for name in TENSORS)


def full_arena(made: Geometry, blocks: int = BLOCKS, segment_blocks: int | None = SEGMENT) -> Arena:
    return Arena(made, made.full, blocks, BLOCK_TOKENS, segment_blocks)


def blocks_for(tokens: int, seed: int = 0) -> list[int]:
    """Block numbers in no order."""
    return [int(block) for block in np.random.default_rng(seed).permutation(BLOCKS)[: -(-tokens // BLOCK_TOKENS)]]
