"""Copies of arrays to host memory and back, begun on the engine thread."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.geometry import MLX_DTYPE, HostTensors, StateGroup, state_name


def host_copies(arrays: Sequence[mx.array]) -> Callable[[], list[bytes]]:
    """Begin to copy arrays. The returned function, for any thread, waits for the device and returns a private copy of
    each one's bytes, row-major.
    """
    begun = [mx.contiguous(array) for array in arrays]
    begun = [array.view(mx.uint16) if array.dtype.size == 2 else array for array in begun]
    mx.async_eval(begun)  # type: ignore[no-untyped-call]
    return lambda: [bytes(memoryview(cast(Any, array))) for array in begun]


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
