"""The data of portable files on their way: private files without a name, bounded in number and by the free disk.

Files of KV have all layers of one kind in one tensor, [layers, kv_heads, tokens, width]; the portable file has one
tensor per layer, [1, tokens, kv_heads, width], so that what follows is written behind what was before. Arrays of states
are single tensors in both.
"""

import itertools
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentmem.errors import ResourceExhausted, is_disk_full
from agentmem.kv.blockfile import TENSORS
from inference_service.engine.geometry import HostTensors
from inference_service.portable.format import TensorPlace, damaged, tensor_name
from inference_service.storage.blocks import NUMPY_DTYPE

RETRY_SECONDS = 10.0
FREE_SHARE = 8
"""Disk that stays free beside a file: one of so many parts of its size."""
_EXPONENTS = {"F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80), "F32": (np.uint32, 0x7F800000)}
"""Bits that a float has all set where it is not finite."""

Places = Mapping[str, TensorPlace]
Layers = Mapping[str, Sequence[int]]
"""What `format.layers_of` gives."""


class SpoolFile:
    """A private file without a name, so that nothing is left of it whatever happens to the process. Any thread.

    It may be closed while a thread is at work: that waits for the piece at work, and the next raises ValueError. A bare
    descriptor could be another file's by then.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by `close`
        self._lock = threading.Lock()

    def write(self, data: bytes, at: int) -> None:
        """Write all of `data`. Raises OSError, and ResourceExhausted where the disk is full."""
        with self._lock, disk_errors():
            self._file.seek(at)
            self._file.write(data)
            self._file.flush()

    def read(self, size: int, at: int) -> bytes:
        """Return so many bytes, or fewer where the file ends. Raises OSError."""
        with self._lock:
            self._file.seek(at)
            return self._file.read(size)

    def close(self) -> None:
        """Remove the file. May be called twice."""
        with self._lock:
            self._file.close()


class Spool:
    """At most `limit` exports and imports, with files in `directory`, which is made on first use. Event loop."""

    def __init__(self, directory: Path, limit: int = 4) -> None:
        self._directory = directory
        self._limit = limit
        self._open = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Count as one export or import. Raises ResourceExhausted if there are as many as may be."""
        if self._open >= self._limit:
            raise ResourceExhausted(
                f"{self._open} agents are being exported or imported; try again when one is done", RETRY_SECONDS
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def file(self, size: int) -> SpoolFile:
        """Return a new file, for `size` bytes. Any thread. Raises ResourceExhausted where the disk lacks them."""
        with disk_errors():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._directory).free
            needed = size + size // FREE_SHARE
            if free < needed:
                raise ResourceExhausted(
                    f"the file takes {size} bytes, so {needed} must be free on the worker's disk, which has {free}; "
                    "make room on it",
                    RETRY_SECONDS,
                )
            return SpoolFile(self._directory)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise ResourceExhausted where the disk or the user's quota is full; other errors pass."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ResourceExhausted("the worker's disk is full; make room on it", RETRY_SECONDS) from error
        raise


def write(
    file: SpoolFile, places: Places, layers: Layers, first_position: int, tokens: int, tensors: HostTensors
) -> None:
    """Write the first `tokens` tokens of a block or window, which begins at `first_position`, to their places.

    `tensors` are [layers, kv_heads, tokens, width]. Raises OSError, and ResourceExhausted where the disk is full.
    """
    for prefix, name in itertools.product(layers, TENSORS):
        for row, layer in enumerate(layers[prefix]):
            place = places[tensor_name(layer, name)]
            data = np.ascontiguousarray(tensors[prefix + name][row, :, :tokens].swapaxes(0, 1))
            file.write(data.tobytes(), _start(place, first_position))


def read(file: SpoolFile, places: Places, layers: Layers, first_position: int, tokens: int) -> dict[str, bytes]:
    """Return the tensors of a block or window, [layers, kv_heads, tokens, width] as bytes.

    Raises OSError, and DataLoss for scales or biases that are not finite: they would spoil whatever attends to them.
    """
    found = {}
    for prefix, name in itertools.product(layers, TENSORS):
        parts = []
        for layer in layers[prefix]:
            place = places[tensor_name(layer, name)]
            piece = file.read(tokens * place.token_bytes, _start(place, first_position))
            if len(piece) != tokens * place.token_bytes:
                raise damaged("it ends too early")
            data = np.frombuffer(piece, NUMPY_DTYPE[place.dtype])
            if not _is_finite(data, place.dtype):
                raise damaged("some numbers are not finite")
            parts.append(data.reshape(tokens, *place.shape[2:]).swapaxes(0, 1))
        found[prefix + name] = np.stack(parts).tobytes()
    return found


def write_states(file: SpoolFile, places: Places, names: Mapping[str, str], tensors: HostTensors) -> None:
    """Write the states of a checkpoint to their places; `names` are those in the portable file by the checkpoint's.

    Raises OSError, and ResourceExhausted where the disk is full.
    """
    for name, target in names.items():
        file.write(tensors[name].tobytes(), places[target].start)


def read_states(file: SpoolFile, places: Places, names: Mapping[str, str]) -> dict[str, bytes]:
    """Return the states of a checkpoint. Raises OSError, and DataLoss for numbers that are not finite."""
    found = {}
    for name, source in names.items():
        place = places[source]
        piece = file.read(place.end - place.start, place.start)
        if len(piece) != place.end - place.start:
            raise damaged("it ends too early")
        if not _is_finite(np.frombuffer(piece, NUMPY_DTYPE[place.dtype]), place.dtype):
            raise damaged(f"some numbers of {source} are not finite")
        found[name] = piece
    return found


def _start(place: TensorPlace, position: int) -> int:
    return place.start + (position - place.first_position) * place.token_bytes


def _is_finite(data: npt.NDArray[np.generic], dtype: str) -> bool:
    if dtype not in _EXPONENTS:
        return True
    bits, exponent = _EXPONENTS[dtype]
    return bool(((data.view(bits) & exponent) != exponent).all())
