"""Files' tensors as arrays: bit for bit, zeros behind them, private, and nothing at all where a read failed."""

import io

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from agentmem.kv.blockfile import TENSORS
from inference_service.engine import uploading
from inference_service.engine.geometry import SAFETENSORS_DTYPE, Geometry, HostTensors
from inference_service.engine.uploading import runs, uploaded
from tests.inference_service.engine.arena_bits import as_file, bits, cut, geometry, random_tensors


def dtypes(made: Geometry) -> dict[str, str]:
    return {name: dtype for name, (dtype, _) in made.shapes(made.full, 1).items()}


def files_of(made: Geometry, counts: list[int], seed: int = 0) -> tuple[list[HostTensors], dict[str, np.ndarray]]:
    """Files of so many tokens each, and all of them in one."""
    whole = random_tensors(made, made.full, sum(counts), seed)
    ends = np.cumsum(counts)
    return [as_file(cut(whole, int(end), int(end - n)), made) for end, n in zip(ends, counts, strict=True)], whole


def check(found: list[dict[str, mx.array]], whole: dict[str, np.ndarray], made: Geometry, capacity: int) -> None:
    assert len(found) == len(made.full.layers)
    for row, tensors in enumerate(found):
        assert list(tensors) == list(TENSORS)
        for name, array in tensors.items():
            _, heads, tokens, width = whole[name].shape
            assert array.shape == (1, heads, capacity, width)
            assert array.dtype == (mx.uint32 if name.endswith("weights") else made.dtype)
            held = bits(array)[0]
            assert np.array_equal(held[:, :tokens], whole[name][row])
            assert not held[:, tokens:].any(), "what is behind the tokens is nobody's"


@given(data=st.data())
def test_every_bit_is_where_it_belongs(data: st.DataObject) -> None:
    made = geometry(data.draw(st.sampled_from([mx.float32, mx.bfloat16, mx.float16])), data.draw(st.integers(1, 3)))
    counts = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    capacity = sum(counts) + data.draw(st.integers(0, 50))
    files, whole = files_of(made, counts, data.draw(st.integers(0, 100)))
    at_once = data.draw(st.sampled_from([None, 0, 1 << 13, 1 << 15, 1 << 30]))
    check(uploaded(files, dtypes(made), capacity, at_once), whole, made, capacity)


def test_whole_blocks_that_were_read_together_are_one_run() -> None:
    made = geometry()
    whole = random_tensors(made, made.full, 32 * 7)
    stacked = {name: np.stack(np.split(array, 7, axis=2)) for name, array in whole.items()}
    files = [{name: array[row] for name, array in stacked.items()} for row in range(7)]
    assert [run.shape[0] for run in runs([file["k.weights"] for file in files])] == [7]
    check(uploaded(files, dtypes(made), 240), whole, made, 240)


TOGETHER = pytest.mark.parametrize("at_once", [0, 1 << 30], ids=["layer by layer", "together"])


@TOGETHER
def test_arrays_share_no_memory_with_files_nor_with_each_other(at_once: int) -> None:
    made = geometry()
    files, whole = files_of(made, [30, 20])
    wanted = {name: array.copy() for name, array in whole.items()}
    first, second = (uploaded(files, dtypes(made), 64, at_once) for _ in range(2))
    for bits_ in whole.values():
        bits_[...] = 0
    for tensors in second[1:]:
        for array in tensors.values():
            array[:, :, :] = 1
            mx.eval(array)
    assert np.array_equal(bits(second[0]["k.weights"])[0, :, :50], wanted["k.weights"][0])
    for array in second[0].values():
        array[:, :, :] = 1
        mx.eval(array)
    check(first, wanted, made, 64)


def test_layers_that_are_loaded_together_are_of_so_many_bytes() -> None:
    made = geometry()
    files, whole = files_of(made, [30, 20])
    layer = whole["k.weights"][0].nbytes
    for at_once, expected in ((0, 3), (layer, 3), (2 * layer, 2), (3 * layer - 1, 2), (3 * layer, 1)):
        tensors = uploading._Joined(files, dtypes(made), 50, at_once).tensors.values()
        assert sum(tensor.name == "k.weights" for tensor in tensors) == expected
        assert sorted(row for tensor in tensors if tensor.name == "v.biases" for row in tensor.rows) == [0, 1, 2]


def test_files_are_not_changed() -> None:
    made = geometry()
    files, whole = files_of(made, [30, 20])
    before = {name: array.copy() for name, array in whole.items()}
    for tensors in uploaded(files, dtypes(made), 50):
        for array in tensors.values():
            array[:, :, :] = 1
            mx.eval(array)
    assert all(np.array_equal(whole[name], before[name]) for name in TENSORS)


def test_more_tokens_than_there_is_room_for_are_refused() -> None:
    made = geometry()
    with pytest.raises(ValueError, match="50 tokens of files for 49"):
        uploaded(files_of(made, [30, 20])[0], dtypes(made), 49)


@TOGETHER
def test_a_read_that_fails_is_an_error_and_no_garbage(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Whatever MLX does about what its reader says: on some backends that is nothing."""
    made, calls = geometry(), 0
    original = uploading._Joined._join

    def failing(self: uploading._Joined, tensor: uploading._Tensor, view: memoryview) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise MemoryError("no memory for this one")
        original(self, tensor, view)

    monkeypatch.setattr(uploading._Joined, "_join", failing)
    files, _ = files_of(made, [30])
    with pytest.raises(MemoryError, match="this one"):
        uploaded(files, dtypes(made), 30, at_once)
    assert calls >= 5


def test_it_is_a_safetensors_file() -> None:
    """Another reader finds the same in it."""
    made = geometry(mx.float32)
    files, whole = files_of(made, [30, 20])
    joined = uploading._Joined(files, dtypes(made), 64, 0)
    end = joined.seek(0, io.SEEK_END)
    header_end = 8 + int.from_bytes(piece(joined, 0, 8), "little")
    data = bytearray(piece(joined, 0, header_end))
    assert SAFETENSORS_DTYPE[made.dtype].encode() in data
    for at, tensor in joined.tensors.items():
        assert at == len(data)
        data += piece(joined, at, tensor.nbytes)
    assert len(data) == end
    found = load(bytes(data))
    for name in TENSORS:
        for row in range(len(made.full.layers)):
            tensor = found[f"{row}.{name}"][0].view(np.uint32)
            assert np.array_equal(tensor[:, :50], whole[name][row])
            assert not tensor[:, 50:].any()


def piece(joined: uploading._Joined, at: int, count: int) -> bytes:
    buffer = bytearray(b"\xff" * count)  # as memory that others have left
    joined.seek(at)
    assert joined.readinto(buffer) == count
    assert joined.tell() == at + count
    return bytes(buffer)
