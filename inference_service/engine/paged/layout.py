"""Where tensors lie in a block, one run of words for all layers of its kind."""

from collections.abc import Mapping
from math import prod
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from inference_service.engine.geometry import MLX_DTYPE, HostTensors, TensorBytes, TensorShapes

_ALIGNMENT: Final = 16
"""Bytes that kernels load at once."""
_NUMBERS: Final = {"U32": np.uint32, "F32": np.float32, "BF16": np.uint16, "F16": np.uint16}
"""16-bit floats are uint16."""

HostTensor = npt.NDArray[np.generic]


class BlockTensor(NamedTuple):
    """[layers, kv_heads, tokens, width], at byte `offset`."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * int(MLX_DTYPE[self.dtype].size)


class BlockLayout:
    def __init__(self, shapes: TensorShapes) -> None:
        """`shapes` have a whole block's tokens."""
        self.tensors: dict[str, BlockTensor] = {}
        end = 0
        for name, (dtype, shape) in shapes.items():
            self.tensors[name] = BlockTensor(end, dtype, shape)
            end += -(-self.tensors[name].nbytes // _ALIGNMENT) * _ALIGNMENT
        self.words = end // 4

    @property
    def nbytes(self) -> int:
        return self.words * 4

    def views(self, block: npt.NDArray[np.uint32]) -> dict[str, HostTensor]:
        whole = block.view(np.uint8)
        return {
            name: whole[each.offset : each.offset + each.nbytes].view(_NUMBERS[each.dtype]).reshape(each.shape)
            for name, each in self.tensors.items()
        }

    def put(self, block: npt.NDArray[np.uint32], tensors: Mapping[str, HostTensor], first: int = 0) -> None:
        """Copy tensors [layers, kv_heads, n, width] to a block's tokens from `first` on."""
        views = self.views(block)
        for name, new in tensors.items():
            views[name][:, :, first : first + new.shape[2]] = new

    def read(self, block: npt.NDArray[np.uint32], tokens: int) -> TensorBytes:
        """Return a private copy."""
        return flat({name: view[:, :, :tokens] for name, view in self.views(block).items()})


def flat(tensors: HostTensors) -> TensorBytes:
    """In C order, in one allocation: NumPy asks for large pages."""
    memory, found, end = np.empty(sum(each.nbytes for each in tensors.values()), np.uint8), {}, 0
    for name, tensor in tensors.items():
        own = memory[end : end + tensor.nbytes]
        np.copyto(own.view(tensor.dtype).reshape(tensor.shape), tensor)
        found[name], end = own.data, end + tensor.nbytes
    return found
