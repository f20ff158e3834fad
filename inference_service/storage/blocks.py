"""Files of KV, every byte verified. File threads; no MLX arrays."""

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from math import prod

import numpy as np
import numpy.typing as npt

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockFileError, BlockHeader
from agentmem.v1 import types_pb2
from inference_service.engine.geometry import Geometry, HostBuffers, HostTensors, TensorBytes, TensorShapes
from inference_service.memory.match import Reason

NUMPY_DTYPE: dict[str, npt.DTypeLike] = {"U32": "<u4", "F32": "<f4", "F16": "<u2", "BF16": "<u2"}
"""By safetensors' names; 16-bit floats are read as uint16."""


class BlockMiss(Exception):
    """`reason` is for metrics and clients, `fault` for the store. Not `damaged`, the file may be good and stays (too
    many open files, no permission).
    """

    def __init__(self, reason: Reason, fault: str, *, damaged: bool = True) -> None:
        super().__init__(fault)
        self.reason = reason
        self.fault = fault
        self.damaged = damaged


def read_block(path: str, wanted: BlockHeader, digest: bytes, geometry: Geometry) -> HostTensors:
    """Return verified views [layers, kv_heads, tokens, width] of new memory. Raises BlockMiss. Releases the GIL."""
    return read_file(path, wanted, digest, geometry)[1]


def read_file(path: str, wanted: BlockHeader, digest: bytes, geometry: Geometry) -> tuple[memoryview, HostTensors]:
    """Return a file's bytes, and views of them as `read_block`. Raises BlockMiss."""
    try:
        data, found = _read(path, most_bytes(wanted, geometry))
    except FileNotFoundError as error:
        raise BlockMiss(types_pb2.MISS_REASON_ABSENT, "missing") from error
    except BlockFileError as error:
        raise BlockMiss(types_pb2.MISS_REASON_CORRUPT, error.reason) from error
    except OSError as error:
        raise BlockMiss(types_pb2.MISS_REASON_IO_ERROR, "io_error", damaged=error.errno == errno.EIO) from error
    return data, verified(data, wanted, digest, geometry, found)


def read_into(path: str, wanted: BlockHeader, digest: bytes, geometry: Geometry, buffers: HostBuffers) -> None:
    """Read a verified block into `buffers`, in the processor's cache and without the GIL. Raises BlockMiss."""
    with suppress(BlockFileError, OSError):
        with _opened(path, most_bytes(wanted, geometry)) as file:
            _fill(file, wanted, digest, geometry, buffers)
        return
    # One function names faults. By now it may be another, good file.
    _place(read_block(path, wanted, digest, geometry), buffers)


def _place(tensors: HostTensors, buffers: HostBuffers) -> None:
    """Copy tensors [layers, kv_heads, tokens, width] layer by layer."""
    for name, tensor in tensors.items():
        for target, source in zip(buffers[name], tensor, strict=True):
            np.copyto(target, source)


def verified(
    data: bytes | memoryview, wanted: BlockHeader, digest: bytes, geometry: Geometry, found: bytes = b""
) -> HostTensors:
    """Return views [layers, kv_heads, tokens, width] of a whole file, whose digest was `found`. Raises BlockMiss."""
    try:
        if (found or blockfile.digest(data)) != digest:
            raise BlockFileError("digest", "the bytes are not those that were published")
        specs = _wanted_specs(data, len(data), wanted, geometry)
    except BlockFileError as error:
        raise BlockMiss(types_pb2.MISS_REASON_CORRUPT, error.reason) from error
    return {name: _view(data, spec) for name, spec in specs.items()}


def write_block(path: str, header: BlockHeader, tensors: TensorBytes, geometry: Geometry) -> tuple[bytes, int]:
    """Return digest and size of a new file, which the store fsyncs. Raises OSError."""
    parts, running = _parts(header, tensors, geometry), blockfile.RunningDigest()

    def hashed() -> Iterator[bytes | memoryview]:
        for part in parts:
            running.update(part)
            yield part

    write_new(path, hashed())
    return running.digest(), sum(map(len, parts))


def write_new(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write a new private file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.writelines(parts)


def _parts(header: BlockHeader, tensors: TensorBytes, geometry: Geometry) -> list[bytes | memoryview]:
    """Return a file's header and tensors, the widest numbers first. safetensors' `serialize` copies twice, with the GIL
    for 6 ms a block of 9.4 MB. Raises ValueError for a wrong size.
    """
    shapes = _shapes(header, geometry)
    described: dict[str, object] = {"__metadata__": header.to_metadata()}
    parts: list[bytes | memoryview] = []
    end = 0
    for name in sorted(shapes, key=lambda name: (-np.dtype(NUMPY_DTYPE[shapes[name][0]]).itemsize, name)):
        dtype, shape = shapes[name]
        if len(tensors[name]) != _bytes({name: shapes[name]}):
            raise ValueError(f"{name} has {len(tensors[name])} bytes, which is not what its shape takes")
        begin, end = end, end + len(tensors[name])
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        parts.append(tensors[name])
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]


def most_bytes(wanted: BlockHeader, geometry: Geometry) -> int:
    return blockfile.MAX_HEADER_BYTES + 8 + _bytes(_shapes(wanted, geometry))


def host_memory(size: int) -> memoryview:
    """NumPy asks for large pages."""
    return np.empty(size, np.uint8).data


_HASHED = 512 * 1024
"""Read and hashed at once: fits a core's cache."""
_PIECE = 256 * 1024
"""The same, with a copy."""


def _fill(file: FileIO, wanted: BlockHeader, digest: bytes, geometry: Geometry, buffers: HostBuffers) -> None:
    running = blockfile.RunningDigest()
    memory = host_memory(_PIECE)

    def following(count: int) -> memoryview:
        """Return the next bytes; the next call overwrites them."""
        nonlocal memory
        if count > len(memory):
            memory = host_memory(count)
        piece = memory[:count]
        if _read_into(file, piece) < count:
            raise BlockFileError("truncated", "the file has become shorter")
        running.update(piece)
        return piece

    header = bytes(following(8))
    header += bytes(following(blockfile.header_bytes(header) - 8))
    specs = _wanted_specs(header, os.fstat(file.fileno()).st_size, wanted, geometry)
    for name, spec in sorted(specs.items(), key=lambda item: item[1].start):
        targets = buffers[name]
        layer_bytes = (spec.end - spec.start) // len(targets)
        step = max(1, _PIECE // layer_bytes)
        for first in range(0, len(targets), step):
            part = targets[first : first + step]
            piece = np.frombuffer(following(len(part) * layer_bytes), NUMPY_DTYPE[spec.dtype])
            for target, source in zip(part, piece.reshape(len(part), *spec.shape[1:]), strict=True):
                np.copyto(target, source)
    if running.digest() != digest:
        raise BlockFileError("digest", "the bytes are not those that were published")


def _wanted_specs(
    prefix: bytes | memoryview, size: int, wanted: BlockHeader, geometry: Geometry
) -> dict[str, blockfile.TensorSpec]:
    header, specs = blockfile.parse(prefix, size)
    blockfile.verify(header, wanted)
    shapes = _shapes(wanted, geometry)
    if specs.keys() != shapes.keys():
        raise BlockFileError("header", "other tensors than the model's")
    for name, (dtype, shape) in shapes.items():
        if (specs[name].dtype, specs[name].shape) != (dtype, shape):
            raise BlockFileError("header", f"{name} has another shape than the model's")
    return specs


def _read(path: str, most: int) -> tuple[memoryview, bytes]:
    """Return a regular file's bytes and digest. Raises OSError, BlockFileError."""
    with _opened(path, most) as file:
        data = host_memory(os.fstat(file.fileno()).st_size)
        running, end, count = blockfile.RunningDigest(), 0, -1
        while count and end < len(data):
            count = _read_into(file, data[end : end + _HASHED])
            running.update(data[end : end + count])
            end += count
        return data[:end].toreadonly(), running.digest()


@contextmanager
def _opened(path: str, most: int) -> Iterator[FileIO]:
    """Open a regular file of at most so many bytes. Raises OSError, BlockFileError."""
    with open(path, "rb", 0, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if found.st_size > most:
            raise BlockFileError("digest", f"{found.st_size} bytes, where {most} are the most")
        yield file


def _read_into(file: FileIO, data: memoryview) -> int:
    end = 0
    while end < len(data) and (count := file.readinto(data[end:])):
        end += count
    return end


def _bytes(shapes: TensorShapes) -> int:
    return sum(np.dtype(NUMPY_DTYPE[dtype]).itemsize * prod(shape) for dtype, shape in shapes.values())


def _shapes(header: BlockHeader, geometry: Geometry) -> TensorShapes:
    shapes = geometry.checkpoint_shapes if header.window else geometry.block_shapes
    return shapes(header.token_count)


def _view(data: bytes | memoryview, spec: blockfile.TensorSpec) -> npt.NDArray[np.generic]:
    dtype = NUMPY_DTYPE[spec.dtype]
    count = (spec.end - spec.start) // np.dtype(dtype).itemsize
    view: npt.NDArray[np.generic] = np.frombuffer(data, dtype, count, spec.start).reshape(spec.shape)
    return view
