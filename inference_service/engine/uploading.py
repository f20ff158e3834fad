"""Tensors of files as evaluated arrays per layer, joined on their way to the device. Engine thread only.

`mx.array` of host memory is slow for a GPU that has memory of its own: its pages move one fault at a time when the
first kernel reads them. MLX's loader is fast: it reads an array at a time into host memory, or straight into the array
where the device's memory is the host's. So MLX is given a safetensors file that exists only here, and whose tensors are
joined from the files' while it reads. (Where it is, and the engine is idle, files of blocks are read into the arrays
themselves: see `preallocating`.)

A tensor that MLX loads costs 0.2 ms on CUDA whatever its size (H200), so there several layers come at once, and are
copied apart on the device; but never as much as the C library takes from the system each time: fresh pages cost more
than what is written into them. NumPy takes the interpreter's lock for each array: what is in many files is few copies,
shared among threads, for one alone does not fill a server's memory bandwidth.
"""

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.device import has_own_memory
from inference_service.engine.geometry import MLX_DTYPE, HostTensors, StateGroup, state_name
from inference_service.engine.tensor_file import Entry, TensorFile

Array = npt.NDArray[np.generic]
Copy = tuple[Array, Array]
"""A target, and what it gets, of the same shape."""

_THREADS = 4
_SHARE = 1 << 20
"""Bytes that are worth a thread."""
_threads = ThreadPoolExecutor(_THREADS, "joining")


def runs(parts: Sequence[Array]) -> list[Array]:
    """Neighbours of one shape that lie at equal distances in memory, as one array [n, *shape] of that memory each.

    The caller must keep the parts alive: the views do not.
    """
    found: list[list[Array]] = []
    for part in parts:
        run = found[-1] if found else []
        alike = bool(run) and (part.shape, part.strides, part.dtype) == (run[0].shape, run[0].strides, run[0].dtype)
        if alike and (len(run) == 1 or _distance(run[-1], part) == _distance(*run[:2])):
            run.append(part)
        else:
            found.append([part])
    return [_as_one(run) for run in found]


def copy_all(copies: Sequence[Copy], axis: int, *, shared: bool) -> None:
    """Make them all; by some threads, in shares along an axis, if they are to be `shared` and large enough for that.

    To share them costs more than it gains on a CPU that computes with the same few cores.
    """
    if shared and sum(source.nbytes for _, source in copies) >= 2 * _SHARE:
        shares = [share for copy in copies for share in _shares(*copy, axis)]
        list(_threads.map(lambda share: np.copyto(*share), shares))
        return
    for target, source in copies:
        np.copyto(target, source)


def _as_one(run: Sequence[Array]) -> Array:
    distance = _distance(*run[:2]) if len(run) > 1 else 0
    shape, strides = (len(run), *run[0].shape), (distance, *run[0].strides)
    return np.lib.stride_tricks.as_strided(run[0], shape, strides, writeable=False)


def _distance(one: Array, other: Array) -> int:
    """Bytes from the beginning of one array to that of another."""
    first, second = (array.__array_interface__["data"][0] for array in (one, other))
    return int(second - first)


def _shares(target: Array, source: Array, axis: int) -> list[Copy]:
    count = min(_THREADS, max(1, source.nbytes // _SHARE), source.shape[axis])
    bounds = [source.shape[axis] * share // count for share in range(count + 1)]
    cuts = [(*[slice(None)] * axis, slice(a, b)) for a, b in itertools.pairwise(bounds)]
    return [(target[cut], source[cut]) for cut in cuts]


_AT_ONCE = 16 << 20
"""Bytes of layers that are loaded as one tensor. glibc takes 32 MiB and more from the system each time."""


def uploaded(
    files: Sequence[HostTensors], dtypes: Mapping[str, str], capacity: int, at_once: int | None = None
) -> list[dict[str, mx.array]]:
    """Each layer's tensors by name, [1, kv_heads, capacity, width]: those of `files` in a row, and then zeros.

    `dtypes` are safetensors' names of what the tensors hold. Layers of up to `at_once` bytes are loaded together; by
    default one by one where the device's memory is the host's, because taking them apart is a copy more. The arrays are
    evaluated and share no memory with the files; nor with each other, but for some KB.
    """
    if at_once is None:
        at_once = _AT_ONCE if has_own_memory() else 0
    joined = _Joined(files, dtypes, capacity, at_once)
    loaded = joined.load()
    layers: list[dict[str, mx.array]] = [{} for _ in range(joined.layers)]
    whole = []
    for tensor in joined.tensors.values():
        array = loaded.pop(tensor.key)
        if len(tensor.rows) == 1:
            apart = [array]
            whole.append(array)
        else:
            apart = [mx.contiguous(array[row : row + 1]) for row in range(len(tensor.rows))]
            mx.eval(apart)  # One tensor after the other: what is transient is one tensor's share.
        for row, part in zip(tensor.rows, apart, strict=True):
            layers[row][tensor.name] = part
    mx.eval(whole)
    if joined.failure is not None:
        raise joined.failure
    if joined.read_tensors != len(joined.tensors):
        raise RuntimeError(f"MLX read {joined.read_tensors} of {len(joined.tensors)} tensors that were in memory")
    return layers


class _Tensor(NamedTuple):
    """A tensor of some layers, [layers, kv_heads, capacity, width]."""

    name: str
    rows: range
    nbytes: int

    @property
    def key(self) -> str:
        """What the file calls it."""
        return f"{self.rows.start}.{self.name}"


class _Joined(TensorFile):
    """A file of what `uploaded` gives, made while it is read.

    MLX may read on a thread that drops exceptions, or that no exception may leave. So a read that fails gives anything,
    and its exception is the `failure`; `read_tensors` counts those that did not fail.
    """

    def __init__(self, files: Sequence[HostTensors], dtypes: Mapping[str, str], capacity: int, at_once: int) -> None:
        self.read_tensors = 0
        self.failure: Exception | None = None
        self._files = files  # Runs are views of their memory.
        self._runs = {name: runs([file[name] for file in files]) for name in dtypes}
        named = next(iter(dtypes))
        self._filled = sum(file[named].shape[2] for file in files)
        if self._filled > capacity:
            raise ValueError(f"{self._filled} tokens of files for {capacity}")
        self._capacity = capacity
        self._shared = at_once > 0
        self.layers = files[0][named].shape[0]
        entries: dict[str, Entry] = {}
        tensors = []
        for name, dtype in dtypes.items():
            _, heads, _, width = files[0][name].shape
            layer_bytes = heads * capacity * width * files[0][name].itemsize
            step = max(1, at_once // layer_bytes)
            for first in range(0, self.layers, step):
                rows = range(first, min(first + step, self.layers))
                tensor = _Tensor(name, rows, len(rows) * layer_bytes)
                tensors.append(tensor)
                entries[tensor.key] = dtype, (len(rows), heads, capacity, width), tensor.nbytes
        super().__init__(entries)
        self.tensors = {self.starts[tensor.key]: tensor for tensor in tensors}
        """By where they are in the file."""

    def fill(self, start: int, view: memoryview) -> None:
        try:
            self._join(self.tensors[start], view)
        except Exception as error:  # noqa: BLE001 - no exception may leave MLX's thread
            self.failure = error
        else:
            self.read_tensors += 1

    def _join(self, tensor: _Tensor, view: memoryview) -> None:
        layers = slice(tensor.rows.start, tensor.rows.stop)
        first = self._runs[tensor.name][0]
        whole = np.frombuffer(view, first.dtype).reshape(len(tensor.rows), first.shape[2], self._capacity, -1)
        copies, start = [], 0
        for run in self._runs[tensor.name]:
            count, _, heads, tokens, width = run.shape
            behind = whole[:, :, start : start + count * tokens].reshape(-1, heads, count, tokens, width)
            copies.append((behind, run[:, layers].transpose(1, 2, 0, 3, 4)))
            start += count * tokens
        copy_all(copies, axis=2, shared=self._shared)
        whole[:, :, self._filled :] = 0


def host_bytes(array: mx.array) -> bytes:
    """A private copy of the bytes of an array of any shape, in host memory; row-major. Waits for the device."""
    array = mx.contiguous(array)
    if array.dtype.size == 2:
        array = array.view(mx.uint16)
    mx.eval(array)
    return bytes(memoryview(cast(Any, array)))


def uploaded_states(file: HostTensors, group: StateGroup) -> list[list[mx.array]]:
    """The states of a checkpoint's file on the device, [1, …] for each array of each layer, evaluated."""
    found = []
    for layer, arrays in zip(group.layers, group.arrays, strict=True):
        found.append([_array(file[state_name(layer, i)], array.dtype) for i, array in enumerate(arrays)])
    mx.eval(found)
    return found


def _array(host: Array, dtype: str) -> mx.array:
    wanted = MLX_DTYPE[dtype]
    array = mx.array(host)
    return (array if array.dtype == wanted else array.view(wanted))[None]
