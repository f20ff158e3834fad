"""Copies of arrays to host memory and back. Engine thread only."""

from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.geometry import MLX_DTYPE, HostTensors, StateGroup, state_name


def host_bytes(array: mx.array) -> bytes:
    """Return a private copy of an array's bytes in host memory, row-major, for any shape. Waits for the device."""
    array = mx.contiguous(array)
    if array.dtype.size == 2:
        array = array.view(mx.uint16)
    mx.eval(array)
    return bytes(memoryview(cast(Any, array)))


def uploaded_states(file: HostTensors, group: StateGroup) -> list[list[mx.array]]:
    """Return the states of a checkpoint's file on the device, [1, …] for each array of each layer, evaluated."""
    found = []
    for layer, arrays in zip(group.layers, group.arrays, strict=True):
        found.append([_array(file[state_name(layer, i)], array.dtype) for i, array in enumerate(arrays)])
    mx.eval(found)
    return found


def _array(host: npt.NDArray[np.generic], dtype: str) -> mx.array:
    wanted = MLX_DTYPE[dtype]
    array = mx.array(host)
    return (array if array.dtype == wanted else array.view(wanted))[None]
