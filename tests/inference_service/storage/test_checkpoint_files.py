"""Files of checkpoints: of windows, of states, of both; and those of another kind of model, which are refused."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv import blockfile
from agentmem.kv.blockfile import NO_PARENT, BlockHeader
from agentmem.v1 import types_pb2
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import KVFormat
from inference_service.storage.blocks import BlockMiss, build, verified

TOKENS = 40
STATES = StateGroup((1, 3), ((StateArray((3, 8), "BF16"), StateArray((2, 4, 4), "F32")),) * 2)
FULL = Geometry(4, mx.float32, KVFormat(4, 4, 32), LayerGroup((0,), 2, 64, 64))
WINDOWED = replace(FULL, sliding=LayerGroup((2,), 2, 64, 64, 64))
RECURRENT = replace(FULL, states=STATES)
BOTH = replace(WINDOWED, states=STATES)
KINDS = {"windows": WINDOWED, "states": RECURRENT, "both": BOTH}


def header(geometry: Geometry) -> BlockHeader:
    return BlockHeader("f", "ns", b"n" * 16, NO_PARENT, 0, TOKENS, window=True)


def tensors(geometry: Geometry) -> dict[str, bytes]:
    generator = np.random.default_rng(7)
    sizes = {"U32": 4, "F32": 4, "BF16": 2}
    return {
        name: generator.bytes(sizes[dtype] * int(np.prod(shape)))
        for name, (dtype, shape) in geometry.checkpoint_shapes(TOKENS).items()
    }


@pytest.mark.parametrize("geometry", KINDS.values(), ids=KINDS)
def test_what_is_read_is_what_was_written(geometry: Geometry) -> None:
    written = tensors(geometry)
    built = build(header(geometry), written, geometry)
    read = verified(built.data, header(geometry), built.digest, geometry)
    assert {name: array.tobytes() for name, array in read.items()} == written
    assert {name: array.shape for name, array in read.items()} == {
        name: shape for name, (_, shape) in geometry.checkpoint_shapes(TOKENS).items()
    }


@pytest.mark.parametrize(
    ("of", "to"), [(of, to) for of in KINDS for to in KINDS if of != to], ids=lambda kind: str(kind)
)
def test_a_file_of_another_kind_of_model_is_a_miss(of: str, to: str) -> None:
    built = build(header(KINDS[of]), tensors(KINDS[of]), KINDS[of])
    with pytest.raises(BlockMiss) as missed:
        verified(built.data, header(KINDS[to]), built.digest, KINDS[to])
    assert missed.value.reason == types_pb2.MISS_REASON_CORRUPT


def test_states_of_another_shape_are_a_miss() -> None:
    other = replace(RECURRENT, states=StateGroup((1,), ((StateArray((3, 9), "BF16"),),)))
    more = replace(RECURRENT, states=StateGroup((1, 3, 5), (*STATES.arrays, STATES.arrays[0])))
    for geometry in (other, more):
        built = build(header(geometry), tensors(geometry), geometry)
        with pytest.raises(BlockMiss):
            verified(built.data, header(RECURRENT), built.digest, RECURRENT)


def test_a_block_has_no_states() -> None:
    built = build(header(BOTH), tensors(BOTH), BOTH)
    assert blockfile.STATE.encode() in built.data
    data = built.data.replace(b'"kind":"window"', b'"kind":"blocks"')
    assert data != built.data
    with pytest.raises(blockfile.BlockFileError):
        blockfile.parse(data, len(data))
