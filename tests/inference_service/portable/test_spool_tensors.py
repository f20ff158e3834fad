import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import DataLoss
from inference_service.portable.format import KVGeometry, LayerShape, StateShape, places
from inference_service.portable.spool import SpoolFile, read, read_states, write, write_states
from tests.inference_service.portable.files import ITEM, block

FULL, SLIDING = {"": (0, 2)}, {"": (1,)}


@contextmanager
def spooled() -> Iterator[SpoolFile]:
    with closing(SpoolFile(Path(tempfile.gettempdir()))) as file:
        yield file


def geometry(dtype: str) -> KVGeometry:
    full = LayerShape(2, 64, 128)
    return KVGeometry(dtype, 4, 64, (full, LayerShape(1, 64, 64, window=8), full))


@given(dtype=st.sampled_from(["F32", "F16", "BF16"]), kv_tokens=st.integers(1, 40), size=st.integers(1, 16))
def test_blocks_in_and_out(dtype: str, kv_tokens: int, size: int) -> None:
    first = max(0, kv_tokens - 8)
    where = places(geometry(dtype), kv_tokens, (0, first, 0))
    window = block(1, 1, (8, 1), (8, 1), kv_tokens - first + 3, dtype, seed=99)
    blocks = [block(2, 2, (8, 1), (16, 2), size, dtype, seed) for seed in range(-(-kv_tokens // size))]
    with spooled() as file:
        write(file, where, SLIDING, first, kv_tokens - first, window)
        for index in reversed(range(len(blocks))):
            write(file, where, FULL, index * size, min(size, kv_tokens - index * size), blocks[index])
        for index, tensors in enumerate(blocks):
            tokens = min(size, kv_tokens - index * size)
            found = read(file, where, FULL, index * size, tokens)
            assert found == {name: tensor[:, :, :tokens].tobytes() for name, tensor in tensors.items()}
        found = read(file, where, SLIDING, first, kv_tokens - first)
        assert found == {name: tensor[:, :, : kv_tokens - first].tobytes() for name, tensor in window.items()}


def test_the_portable_tensor_is_token_after_token() -> None:
    where = places(geometry("F32"), 6, (0, 0, 0))
    tensors = block(2, 2, (8, 1), (16, 2), 6, "F32")
    with spooled() as file:
        write(file, where, FULL, 0, 6, tensors)
        place = where["layer_2_v_scales"]
        found = np.frombuffer(file.read(place.end - place.start, place.start), np.float32)
    assert np.array_equal(found.reshape(place.shape)[0], tensors["v.scales"][1].swapaxes(0, 1))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_would_spoil_attention_are_refused(dtype: str, number: float) -> None:
    where = places(geometry(dtype), 6, (0, 0, 0))
    tensors = block(2, 2, (8, 1), (16, 2), 6, dtype)
    bits = np.float32(number).view(np.uint32) >> 16 if dtype == "BF16" else np.float16(number).view(np.uint16)
    tensors["v.biases"][1, 1, 5, 1] = number if dtype == "F32" else bits
    with spooled() as file:
        write(file, where, FULL, 0, 6, tensors)
        write(file, where, SLIDING, 0, 6, block(1, 1, (8, 1), (8, 1), 6, dtype))
        read(file, where, FULL, 0, 5)
        with pytest.raises(DataLoss, match="finite"):
            read(file, where, FULL, 0, 6)


def test_a_file_that_ends_too_early() -> None:
    where = places(geometry("F32"), 6, (0, 0, 0))
    with spooled() as file, pytest.raises(DataLoss):
        read(file, where, FULL, 0, 6)


NAMES = {"state.1.0": "state_0_0", "state.4.0": "state_1_0"}


def states(dtype: str) -> tuple[KVGeometry, dict[str, np.ndarray]]:
    """Two layers of one array each, as in the file of a checkpoint."""
    shape = StateShape(dtype, (3, 8))
    item = np.dtype(ITEM[dtype])
    arrays = np.random.default_rng(0).integers(0, 0x3C00, (2, 3, 8)).astype(f"u{item.itemsize}")
    made = replace(geometry("BF16"), states=((shape,), (shape,)))
    return made, dict(zip(NAMES, arrays.view(item), strict=True))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "U32"])
def test_states_in_and_out_beside_kv(dtype: str) -> None:
    described, tensors = states(dtype)
    where = places(described, 6, (0, 0, 0))
    kv = block(2, 2, (8, 1), (16, 2), 6, "BF16")
    with spooled() as file:
        write(file, where, SLIDING, 0, 6, block(1, 1, (8, 1), (8, 1), 6, "BF16"))
        write_states(file, where, NAMES, tensors)
        write(file, where, FULL, 0, 6, kv)
        assert read_states(file, where, NAMES) == {name: array.tobytes() for name, array in tensors.items()}
        assert read(file, where, FULL, 0, 6) == {name: array.tobytes() for name, array in kv.items()}
        assert read_states(file, where, {}) == {}


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "U32"])
def test_states_that_are_not_finite_are_refused_by_name(dtype: str, number: float) -> None:
    described, tensors = states(dtype)
    where = places(described, 6, (0, 0, 0))
    bits = np.float32(number).view(np.uint32)
    if dtype == "F16":
        bits = np.float16(number).view(np.uint16)
    bad = tensors["state.4.0"].view(np.uint16 if dtype in ("F16", "BF16") else np.uint32)
    bad[2, 7] = bits >> 16 if dtype == "BF16" else bits
    with spooled() as file:
        write_states(file, where, NAMES, tensors)
        if dtype == "U32":  # Integers: every pattern of bits is a number.
            assert read_states(file, where, NAMES)["state.4.0"] == tensors["state.4.0"].tobytes()
            return
        with pytest.raises(DataLoss, match="some numbers of state_1_0 are not finite"):
            read_states(file, where, NAMES)


def test_states_that_end_too_early() -> None:
    described, tensors = states("F32")
    where = places(described, 6, (0, 0, 0))
    with spooled() as file:
        write_states(file, where, {"state.1.0": "state_0_0"}, tensors)
        with pytest.raises(DataLoss, match="too early"):
            read_states(file, where, {"state.4.0": "layer_2_v_biases"})
