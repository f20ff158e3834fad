"""Buffers of caches that are allocated before the files they are read from: a restore then copies each byte once.

Only where the device's memory is the host's. MLX allocates arrays when it evaluates them, on the engine's thread, and
has none that are not written; but what it loads it lets a reader write, and a reader may leave that for later.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.geometry import MLX_DTYPE, HostBuffers, TensorShapes
from inference_service.engine.tensor_file import Entry, TensorFile

_AS_NUMBERS = {"BF16": "U16", "F16": "U16"}
"""What 16-bit floats are as long as they are host memory."""
_NUMBERS = {"U16": mx.uint16}
_LARGE = 64 * 1024
"""Bytes of an array from which on MLX loads it, at 0.08 ms whatever its size, in less time than it writes zeros."""


class PreallocatedBuffers:
    """Each layer's tensors, [1, kv_heads, capacity, width], that threads write as host memory before they are used.

    Made on the engine thread from the shapes of a block of `capacity` tokens. `between` and `clear` may be called on
    any thread; `take` ends that, on the engine thread again, when nobody writes any more. Views keep the memory alive.
    """

    def __init__(self, shapes: TensorShapes, capacity: int) -> None:
        self.capacity = capacity
        self._cleared = capacity
        self._dtypes = {name: MLX_DTYPE[dtype] for name, (dtype, _) in shapes.items()}
        arrays: dict[str, mx.array] = {}
        large: dict[str, Entry] = {}
        for name, (dtype, (layers, *shape)) in shapes.items():
            bits = _AS_NUMBERS.get(dtype, dtype)
            size = prod(shape) * int(MLX_DTYPE[dtype].size)
            for key in (f"{row}.{name}" for row in range(layers)):
                if size < _LARGE:
                    arrays[key] = mx.zeros((1, *shape), dtype=_NUMBERS.get(bits, self._dtypes[name]))
                else:
                    large[key] = bits, (1, *shape), size
        if large:
            arrays |= TensorFile(large).load()
        mx.eval(arrays)
        self._arrays = {
            name: [arrays.pop(f"{row}.{name}") for row in range(shape[0])] for name, (_, shape) in shapes.items()
        }
        self._views: HostBuffers = {name: [_view(array) for array in rows] for name, rows in self._arrays.items()}

    def between(self, start: int, end: int) -> HostBuffers:
        """The memory of tokens `start` to `end`, for each tensor each layer's, [kv_heads, tokens, width]."""
        if end > self.capacity:
            raise ValueError(f"tokens to {end} for {self.capacity}")
        return {name: [view[:, start:end] for view in views] for name, views in self._views.items()}

    def clear(self, start: int) -> None:
        """Have zeros from token `start` on, as far as there are none yet. One thread at a time."""
        if start < self._cleared:
            for views in self.between(start, self._cleared).values():
                for view in views:
                    view[...] = 0
            self._cleared = start

    def take(self, names: Sequence[str]) -> list[dict[str, mx.array]]:
        """The arrays of these tensors by layer, once. Nothing may be written through views afterwards."""
        taken = {name: (self._arrays.pop(name), self._views.pop(name))[0] for name in names}
        layers = [
            {name: array.view(self._dtypes[name]) for name, array in zip(names, row, strict=True)}
            for row in zip(*taken.values(), strict=True)
        ]
        mx.eval(layers)
        return layers


def _view(array: mx.array) -> npt.NDArray[np.generic]:
    """An array [1, …] as host memory."""
    return cast(npt.NDArray[np.generic], np.asarray(memoryview(cast(Any, array)))[0])
