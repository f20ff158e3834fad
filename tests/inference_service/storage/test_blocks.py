import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from agentmem.kv import blockfile
from agentmem.kv.blockfile import NO_PARENT, TENSORS, BlockHeader, chain_hash
from agentmem.v1.types_pb2 import MISS_REASON_CORRUPT, MISS_REASON_IO_ERROR
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import KVFormat
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.storage.blocks import BlockMiss, read_block, write_block

DTYPES = [mx.float32, mx.bfloat16, mx.float16]


def geometry(dtype: mx.Dtype = mx.float32, *, k_dim: int = 64, v_dim: int = 128, layers: int = 2) -> Geometry:
    """K and V of different widths, as MLA has them."""
    return Geometry(4, dtype, KVFormat(group_size=32), LayerGroup(tuple(range(layers)), 2, k_dim, v_dim))


def header(tokens: int = 5, *, namespace: str = "ns", first: int = 256) -> BlockHeader:
    parent = chain_hash("print", namespace, NO_PARENT, range(256))
    name = chain_hash("print", namespace, parent, range(tokens))
    return BlockHeader("print", namespace, name, parent, first, tokens)


def random_tensors(shape: Geometry, tokens: int, seed: int = 0, *, window: bool = False) -> dict[str, bytes]:
    rng = random.Random(seed)
    sizes = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}
    shapes = shape.checkpoint_shapes if window else shape.block_shapes
    return {name: rng.randbytes(sizes[dtype] * int(np.prod(dims))) for name, (dtype, dims) in shapes(tokens).items()}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "block.safetensors"
    shape = geometry(k_dim=32, v_dim=32, layers=1)
    digest, _ = write_block(str(path), header(1), random_tensors(shape, 1), shape)
    return path, digest


SMALL = geometry(k_dim=32, v_dim=32, layers=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(tokens=st.integers(1, 256), seed=st.integers(0, 100))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, dtype: mx.Dtype, tokens: int, seed: int) -> None:
    path = tmp_path_factory.mktemp("blocks") / "block.safetensors"
    shape, tensors = geometry(dtype), random_tensors(geometry(dtype), tokens, seed)
    digest, size = write_block(str(path), header(tokens), tensors, shape)
    assert size == path.stat().st_size
    assert digest == blockfile.digest(path.read_bytes())
    read = read_block(str(path), header(tokens), digest, shape)
    assert set(read) == set(TENSORS)
    for name, (_, dims) in shape.block_shapes(tokens).items():
        assert read[name].shape == dims
        assert read[name].tobytes() == tensors[name]
        expected = np.uint32 if name.endswith("weights") else np.float32 if dtype == mx.float32 else np.uint16
        assert read[name].dtype == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_file_is_safetensors_with_mlx_values(tmp_path: Path, dtype: mx.Dtype) -> None:
    path = tmp_path / "block.safetensors"
    shape = geometry(dtype)
    values = {
        name: mx.random.randint(0, 1000, dims).astype(mx.uint32 if name.endswith("weights") else dtype)
        for name, (_, dims) in shape.block_shapes(7).items()
    }
    tensors = {
        name: bytes(memoryview(array if array.dtype.size == 4 else array.view(mx.uint16)))
        for name, array in values.items()
    }
    write_block(str(path), header(7), tensors, shape)
    with safe_open(path, framework="mlx") as file:
        assert file.metadata() == header(7).to_metadata()
        assert sorted(file.keys()) == sorted(TENSORS)
        assert {name: file.get_slice(name).get_dtype() for name in TENSORS} == {
            name: dtype for name, (dtype, _) in shape.block_shapes(7).items()
        }
    for name, array in mx.load(str(path)).items():
        assert array.dtype == values[name].dtype
        assert array.shape == values[name].shape
        assert mx.array_equal(array, values[name])


def test_files_are_private_and_new(written: tuple[Path, bytes]) -> None:
    path, _ = written
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_block(str(path), header(1), random_tensors(SMALL, 1, seed=1), SMALL)
    assert path.read_bytes() == before


def test_a_tensor_of_another_size_is_not_written(tmp_path: Path) -> None:
    tensors = random_tensors(SMALL, 2)
    with pytest.raises(ValueError, match="has 16 bytes, which is not what its shape takes"):
        write_block(str(tmp_path / "block"), header(1), tensors, SMALL)
    assert not (tmp_path / "block").exists()


@pytest.mark.parametrize(
    "wanted",
    [
        replace(header(1), namespace="other"),
        replace(header(1), fingerprint="other"),
        replace(header(1), first_token=0),
        replace(header(1), chain_hash=bytes(32)),
        replace(header(1), parent=NO_PARENT),
        header(2),
    ],
    ids=["namespace", "fingerprint", "position", "name", "parent", "size"],
)
def test_file_in_anothers_place_is_refused(written: tuple[Path, bytes], wanted: BlockHeader) -> None:
    path, digest = written
    with pytest.raises(BlockMiss) as caught:
        read_block(str(path), wanted, digest, SMALL)
    assert (caught.value.reason, caught.value.fault) == (MISS_REASON_CORRUPT, "header")


@pytest.mark.parametrize(
    "other",
    [
        geometry(mx.float16, k_dim=32, v_dim=32, layers=1),
        geometry(k_dim=64, v_dim=32, layers=1),
        geometry(k_dim=32, v_dim=64, layers=1),
        geometry(k_dim=32, v_dim=32, layers=2),
        replace(SMALL, full=replace(SMALL.full, kv_heads=1)),
        replace(SMALL, format=KVFormat(8, 8, 32)),
        replace(SMALL, format=KVFormat(), full=replace(SMALL.full, k_dim=64)),
    ],
    ids=["dtype", "k", "v", "layers", "heads", "bits", "groups"],
)
def test_file_of_another_shape_is_refused(written: tuple[Path, bytes], other: Geometry) -> None:
    path, digest = written
    with pytest.raises(BlockMiss) as caught:
        read_block(str(path), header(1), digest, other)
    assert (caught.value.reason, caught.value.fault) == (MISS_REASON_CORRUPT, "header")


def _failing(number: int) -> Callable[[str, int], int]:
    def opened(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number), str(path))

    return opened


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_file_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("inference_service.storage.blocks.os.open", _failing(number))
    with pytest.raises(BlockMiss) as caught:
        read_block("somewhere", header(), bytes(16), geometry())
    assert (caught.value.reason, caught.value.fault) == (MISS_REASON_IO_ERROR, "io_error")
    assert caught.value.damaged == (number == errno.EIO), "a file that may be good is not put into quarantine"


# Checkpoints: windows, states, or both.

HYBRID = Geometry(
    4, mx.float32, KVFormat(group_size=32), LayerGroup((1, 3), 2, 64, 64), LayerGroup((0, 2), 2, 64, 64, window=8)
)
"""As GPT-OSS: its full and its sliding layers have one shape."""
WIDE = replace(HYBRID, sliding=LayerGroup((0, 2, 4), 1, 32, 96, window=8))
ARRAYS = (StateArray((3, 8), "BF16"), StateArray((2, 4, 4), "F32"))
RECURRENT = replace(HYBRID, sliding=None, states=StateGroup((5, 7), (ARRAYS,) * 2))
KINDS = {
    "windows": HYBRID,
    "other windows": WIDE,
    "states": RECURRENT,
    "other states": replace(RECURRENT, states=StateGroup((5,), ((StateArray((3, 9), "BF16"),),))),
    "more states": replace(RECURRENT, states=StateGroup((5, 7, 9), (ARRAYS,) * 3)),
    "both": replace(HYBRID, states=RECURRENT.states),
}


def checkpoint(folder: Path, shape: Geometry, tokens: int, before: int = 0) -> tuple[Path, BlockHeader, bytes]:
    path, position = folder / "checkpoint.safetensors", before + tokens
    path.unlink(missing_ok=True)
    (saved,) = checkpoint_headers("print", "ns", range(position), {position: tokens})
    digest, size = write_block(str(path), saved, random_tensors(shape, tokens, window=True), shape)
    assert size == path.stat().st_size
    return path, saved, digest


@pytest.mark.parametrize("shape", KINDS.values(), ids=KINDS)
@given(tokens=st.integers(1, 264), before=st.integers(0, 600))
def test_a_checkpoint_comes_back(
    tmp_path_factory: pytest.TempPathFactory, shape: Geometry, tokens: int, before: int
) -> None:
    path, saved, digest = checkpoint(tmp_path_factory.mktemp("checkpoints"), shape, tokens, before)
    read, written = read_block(str(path), saved, digest, shape), random_tensors(shape, tokens, window=True)
    assert {name: array.tobytes() for name, array in read.items()} == written
    shapes = {name: dims for name, (_, dims) in shape.checkpoint_shapes(tokens).items()}
    assert {name: array.shape for name, array in read.items()} == shapes


@pytest.mark.parametrize("of", KINDS)
def test_a_checkpoint_of_another_kind_of_model_is_a_miss(tmp_path: Path, of: str) -> None:
    path, saved, digest = checkpoint(tmp_path, KINDS[of], 20)
    for to in KINDS.keys() - {of}:
        with pytest.raises(BlockMiss, match="header"):
            read_block(str(path), saved, digest, KINDS[to])


def test_a_block_has_no_states(tmp_path: Path) -> None:
    built = checkpoint(tmp_path, KINDS["both"], 20)[0].read_bytes()
    assert blockfile.STATE.encode() in built
    data = built.replace(b'"kind":"window"', b'"kind":"blocks"')
    assert data != built
    with pytest.raises(blockfile.BlockFileError):
        blockfile.parse(data, len(data))


def test_a_window_of_another_position_count_or_kind_is_refused(tmp_path: Path) -> None:
    path, tokens = tmp_path / "window.safetensors", range(600)
    (saved,) = checkpoint_headers("print", "ns", tokens, {512: 20})
    assert (saved.first_token, saved.token_count) == (492, 20)
    digest, _ = write_block(str(path), saved, random_tensors(HYBRID, 20, window=True), HYBRID)
    other_names = [checkpoint_headers("print", "ns", tokens, {at: 20})[0] for at in (256, 511, 513)]
    for wanted in (
        *other_names,
        replace(saved, first_token=491),
        replace(saved, token_count=19),
        replace(saved, token_count=19, first_token=493),
        replace(saved, window=False),
    ):
        with pytest.raises(BlockMiss) as caught:
            read_block(str(path), wanted, digest, HYBRID)
        assert (caught.value.reason, caught.value.fault) == (MISS_REASON_CORRUPT, "header")
