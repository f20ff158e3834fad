"""A safetensors file that exists only in memory, for MLX's loader. Engine thread, and MLX's own."""

import io
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, cast

import mlx.core as mx

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Entry = tuple[str, tuple[int, ...], int]
"""A tensor's safetensors dtype, its shape, and its bytes."""


class _Place(threading.local):
    """Position of the next read. MLX seeks and reads on one thread, but not always on the same."""

    at = 0


class TensorFile(io.RawIOBase):
    """Tensors in a row after a header. A subclass fills them; by default their memory stays as allocated."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        described, end = {}, 0
        starts: dict[str, int] = {}
        for key, (dtype, shape, size) in entries.items():
            starts[key], end = end, end + size
            described[key] = {"dtype": dtype, "shape": shape, "data_offsets": [starts[key], end]}
        text = json.dumps(described).encode()
        self._header = len(text).to_bytes(8, "little") + text
        self._end = len(self._header) + end
        self._place = _Place()
        self.starts = {key: len(self._header) + start for key, start in starts.items()}
        """Offset of each tensor in the file."""

    def load(self) -> dict[str, mx.array]:
        """Return arrays by key, not evaluated yet."""
        return cast(dict[str, mx.array], mx.load(cast(BinaryIO, self), format="safetensors"))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place.at, io.SEEK_END: self._end}[whence]
        self._place.at = base + offset
        return self._place.at

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read a piece of the header, or one whole tensor: MLX reads nothing else."""
        view = memoryview(buffer)
        at, count = self._place.at, len(view)
        if at + count <= len(self._header):
            view[:] = self._header[at : at + count]
        else:
            self.fill(at, view)
        self._place.at = at + count
        return count

    def fill(self, start: int, view: memoryview) -> None:
        """Write the tensor that begins at `start`, or leave its memory as it is. No exception may escape."""
