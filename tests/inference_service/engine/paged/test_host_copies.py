"""The way of arrays to host memory and back: private copies, bit for bit."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.geometry import MLX_DTYPE, StateArray, StateGroup
from inference_service.engine.paged.checkpoints import host_copies, uploaded_states
from tests.inference_service.engine.paged.bits import data_of, random_bits


def taken(arrays: Sequence[mx.array]) -> list[bytes]:
    """By another thread than the one that began."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(host_copies(arrays)).result()


def test_copies_are_of_what_was_there_when_they_began() -> None:
    array = mx.zeros((4, 4))
    mx.eval(array)
    copies = host_copies([array[1]])
    array[1] = 1.0
    mx.eval(array)
    with ThreadPoolExecutor(1) as thread:
        [data] = thread.submit(copies).result()
    array[1] = 2.0
    mx.eval(array)
    assert data == bytes(16)


def test_copies_are_row_major() -> None:
    array = mx.arange(6).reshape(2, 3).T
    assert taken([array]) == [np.array([[0, 3], [1, 4], [2, 5]], np.int32).tobytes()]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_states_of_a_file_come_out_as_they_went_in(dtype: str) -> None:
    group = StateGroup((1, 4), ((StateArray((3, 8), dtype), StateArray((5,), "F32")), (StateArray((2, 2), dtype),)))
    file = random_bits(group.shapes)
    found = uploaded_states(file, group)
    arrays = [array for layer in found for array in layer]
    assert [array.dtype for array in arrays] == [MLX_DTYPE[each] for each, _ in group.shapes.values()]
    assert all(array.shape[0] == 1 for array in arrays)
    wanted = data_of(file)
    for bits in file.values():
        bits[...] = 0
    assert taken(arrays) == list(wanted.values())
