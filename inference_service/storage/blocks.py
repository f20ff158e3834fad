"""Files of blocks and windows of KV: built, written, and read with every byte verified. File threads; no MLX arrays."""

import errno
import os
import stat
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import TensorSpec, serialize

from agentmem import blockfile
from agentmem.blockfile import BlockFileError, BlockHeader
from agentmem.v1 import types_pb2
from inference_service.engine.geometry import Geometry, HostTensors, TensorShapes
from inference_service.memory.match import Reason

NUMPY_DTYPE: dict[str, npt.DTypeLike] = {"U32": "<u4", "F32": "<f4", "F16": "<u2", "BF16": "<u2"}
"""The dtypes of tensors by safetensors' names; 16-bit floats are read as uint16."""
_SERIALIZE_DTYPE = {"U32": "uint32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Built(NamedTuple):
    """A whole file and its digest."""

    data: bytes
    digest: bytes


class BlockMiss(Exception):
    """The file cannot be used. `reason` is for metrics and clients, `fault` for the store's quarantine.

    `damaged` is False where the file may be good (too many open files, no permission): then it stays.
    """

    def __init__(self, reason: Reason, fault: str, *, damaged: bool = True) -> None:
        super().__init__(fault)
        self.reason = reason
        self.fault = fault
        self.damaged = damaged


def read_block(
    path: str, wanted: BlockHeader, digest: bytes, geometry: Geometry, into: memoryview | None = None
) -> HostTensors:
    """Read and verify the file of a block or a window, and return its tensors. Raises BlockMiss.

    They are views [layers, kv_heads, tokens, width] of new memory, or of `into`, which is as long as the file. Reading
    and hashing release the GIL.
    """
    try:
        data = _read(path, most_bytes(wanted, geometry), into)
    except FileNotFoundError as error:
        raise BlockMiss(types_pb2.MISS_REASON_ABSENT, "missing") from error
    except BlockFileError as error:
        raise BlockMiss(types_pb2.MISS_REASON_CORRUPT, error.reason) from error
    except OSError as error:
        raise BlockMiss(types_pb2.MISS_REASON_IO_ERROR, "io_error", damaged=error.errno == errno.EIO) from error
    return verified(data, wanted, digest, geometry)


def verified(data: bytes | memoryview, wanted: BlockHeader, digest: bytes, geometry: Geometry) -> HostTensors:
    """Hash a whole file, compare header and shapes with what is wanted, and return its tensors. Raises BlockMiss.

    They are views of the bytes that were hashed: KV is [layers, kv_heads, tokens, width].
    """
    try:
        if blockfile.digest(data) != digest:
            raise BlockFileError("digest", "the bytes are not those that were published")
        header, specs = blockfile.parse(data, len(data))
        blockfile.verify(header, wanted)
        shapes = _shapes(wanted, geometry)
        if specs.keys() != shapes.keys():
            raise BlockFileError("header", "other tensors than the model's")
        for name, (dtype, shape) in shapes.items():
            if (specs[name].dtype, specs[name].shape) != (dtype, shape):
                raise BlockFileError("header", f"{name} has another shape than the model's")
    except BlockFileError as error:
        raise BlockMiss(types_pb2.MISS_REASON_CORRUPT, error.reason) from error
    return {name: _view(data, spec) for name, spec in specs.items()}


def write_block(path: str, header: BlockHeader, tensors: Mapping[str, bytes], geometry: Geometry) -> tuple[bytes, int]:
    """Write a new file of a block or a window; return its digest and its size in bytes. Raises OSError.

    The digest is of the bytes in memory. The store fsyncs the file when it publishes it.
    """
    built = build(header, tensors, geometry)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(built.data)
    return built.digest, len(built.data)


def build(header: BlockHeader, tensors: Mapping[str, bytes], geometry: Geometry) -> Built:
    """Return a file of a block or a window, in memory."""
    shapes = _shapes(header, geometry)
    entries = {
        name: TensorSpec(
            dtype=_SERIALIZE_DTYPE[dtype], shape=shape, data_ptr=_address(tensors[name]), data_len=len(tensors[name])
        )
        for name, (dtype, shape) in shapes.items()
    }
    data = serialize(entries, header.to_metadata())
    return Built(data, blockfile.digest(data))


def most_bytes(wanted: BlockHeader, geometry: Geometry) -> int:
    """Return more bytes than a file of such a header has."""
    return blockfile.MAX_HEADER_BYTES + 8 + _bytes(_shapes(wanted, geometry))


def host_memory(size: int) -> memoryview:
    """Return memory for files, from NumPy, which asks for large pages: faults would take longer than all of a read."""
    return np.empty(size, np.uint8).data


def _read(path: str, most: int, into: memoryview | None) -> memoryview:
    """Return the bytes of a regular file. Raises OSError, and BlockFileError for one that has another size."""
    with open(path, "rb", 0, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if found.st_size > most:
            raise BlockFileError("digest", f"{found.st_size} bytes, where {most} are the most")
        data = host_memory(found.st_size) if into is None else into
        if len(data) != found.st_size:
            raise BlockFileError("digest", f"{found.st_size} bytes, where {len(data)} were published")
        end = 0
        while end < len(data) and (count := file.readinto(data[end:])):
            end += count
        return data[:end].toreadonly()


def _bytes(shapes: TensorShapes) -> int:
    return sum(np.dtype(NUMPY_DTYPE[dtype]).itemsize * prod(shape) for dtype, shape in shapes.values())


def _shapes(header: BlockHeader, geometry: Geometry) -> TensorShapes:
    shapes = geometry.checkpoint_shapes if header.window else geometry.block_shapes
    return shapes(header.token_count)


def _address(data: bytes) -> int:
    return np.frombuffer(data, np.uint8).ctypes.data


def _view(data: bytes | memoryview, spec: blockfile.TensorSpec) -> npt.NDArray[np.generic]:
    dtype = NUMPY_DTYPE[spec.dtype]
    count = (spec.end - spec.start) // np.dtype(dtype).itemsize
    view: npt.NDArray[np.generic] = np.frombuffer(data, dtype, count, spec.start).reshape(spec.shape)
    return view
