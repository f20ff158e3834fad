"""Files of checkpoints: of windows, of states, of both; and those of another kind of model, which are refused."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv import blockfile
from agentmem.kv.blockfile import NO_PARENT, BlockHeader
from agentmem.v1 import types_pb2
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import KVFormat
from inference_service.storage.blocks import BlockMiss, verified, write_block

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


def build(folder: Path, geometry: Geometry) -> tuple[bytes, bytes]:
    """Return a file of a checkpoint, and its digest."""
    path = folder / "checkpoint"
    path.unlink(missing_ok=True)
    digest, _ = write_block(str(path), header(geometry), tensors(geometry), geometry)
    return path.read_bytes(), digest


@pytest.mark.parametrize("geometry", KINDS.values(), ids=KINDS)
def test_what_is_read_is_what_was_written(tmp_path: Path, geometry: Geometry) -> None:
    written = tensors(geometry)
    data, digest = build(tmp_path, geometry)
    read = verified(data, header(geometry), digest, geometry)
    assert {name: array.tobytes() for name, array in read.items()} == written
    assert {name: array.shape for name, array in read.items()} == {
        name: shape for name, (_, shape) in geometry.checkpoint_shapes(TOKENS).items()
    }


@pytest.mark.parametrize(
    ("of", "to"), [(of, to) for of in KINDS for to in KINDS if of != to], ids=lambda kind: str(kind)
)
def test_a_file_of_another_kind_of_model_is_a_miss(tmp_path: Path, of: str, to: str) -> None:
    data, digest = build(tmp_path, KINDS[of])
    with pytest.raises(BlockMiss) as missed:
        verified(data, header(KINDS[to]), digest, KINDS[to])
    assert missed.value.reason == types_pb2.MISS_REASON_CORRUPT


def test_states_of_another_shape_are_a_miss(tmp_path: Path) -> None:
    other = replace(RECURRENT, states=StateGroup((1,), ((StateArray((3, 9), "BF16"),),)))
    more = replace(RECURRENT, states=StateGroup((1, 3, 5), (*STATES.arrays, STATES.arrays[0])))
    for geometry in (other, more):
        data, digest = build(tmp_path, geometry)
        with pytest.raises(BlockMiss):
            verified(data, header(RECURRENT), digest, RECURRENT)


def test_a_block_has_no_states(tmp_path: Path) -> None:
    built, _ = build(tmp_path, BOTH)
    assert blockfile.STATE.encode() in built
    data = built.replace(b'"kind":"window"', b'"kind":"blocks"')
    assert data != built
    with pytest.raises(blockfile.BlockFileError):
        blockfile.parse(data, len(data))
