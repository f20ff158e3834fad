"""A geometry, sequences of any bits, and these as files have them, for tests of the pool's memory."""

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.geometry import Geometry, HostTensors, LayerGroup, StateArray, StateGroup, TensorShapes
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.quantization import KVFormat

Bits = dict[str, npt.NDArray[Any]]

NUMBERS = {"U32": np.uint32, "F32": np.float32, "BF16": np.uint16, "F16": np.uint16}

CASES = [
    (mx.float32, 2, KVFormat(4, 4, 64)),
    (mx.bfloat16, 1, KVFormat(8, 4, 32)),
    (mx.float16, 3, KVFormat(5, 3, 32)),
    (mx.bfloat16, 2, KVFormat(6, 2, 64)),
]
every_case = pytest.mark.parametrize(
    "case", CASES, ids=[f"{str(dtype)[9:]}-{heads}-{by.k.bits}-{by.v.bits}" for dtype, heads, by in CASES]
)
Case = tuple[mx.Dtype, int, KVFormat]


def geometry(case: Case = CASES[0], window: int = 64, *, states: bool = False) -> Geometry:
    """Three layers with full attention and two with a window between them; V is wider than K. And a recurrent one."""
    dtype, heads, by = case
    places = (0, 2, 4) if window else (0, 1, 2)
    full, sliding = LayerGroup(places, heads, 64, 128), LayerGroup((1, 3), heads, 128, 64, window)
    arrays = StateArray((3, 8), "F32"), StateArray((2,), "BF16")
    recurrent = StateGroup((places[-1] + 1,), (arrays,)) if states else None
    return Geometry(4, dtype, by, full, sliding if window else None, recurrent)


def random_bits(shapes: TensorShapes, seed: int = 0) -> Bits:
    dice = np.random.default_rng(seed)
    found = {}
    for name, (dtype, shape) in shapes.items():
        kind = np.dtype(NUMBERS[dtype])
        words = dice.integers(0, 256, (*shape[:-1], shape[-1] * kind.itemsize), dtype=np.uint8)
        found[name] = words.view(kind)
    return found


def cut(tensors: HostTensors, start: int, end: int) -> Bits:
    """Some tokens of tensors [layers, kv_heads, tokens, width]."""
    return {name: array[:, :, start:end] for name, array in tensors.items()}


def data_of(tensors: HostTensors) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def block_layout(made: Geometry, tokens: int = BLOCK_TOKENS) -> BlockLayout:
    return BlockLayout(made.block_shapes(tokens))


def as_file(data: dict[str, bytes], shapes: TensorShapes) -> Bits:
    return {name: np.frombuffer(data[name], NUMBERS[dtype]).reshape(shape) for name, (dtype, shape) in shapes.items()}
