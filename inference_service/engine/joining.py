"""Arrays of many files taken together: as one where they lie so in memory, and copied by some threads. No MLX.

NumPy copies without the interpreter, but comes back to it for each array. So what is in many files is few copies, and
those are shared among threads: one alone does not fill a server's memory bandwidth. Any thread.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Copy = tuple[Array, Array]
"""A target, and what it gets, of the same shape."""

_THREADS = 4
_SHARE = 1 << 20
"""Bytes that are worth a thread."""
_threads = ThreadPoolExecutor(_THREADS, "joining")


def runs(parts: Sequence[Array]) -> list[Array]:
    """Neighbours of one shape that lie at equal distances in memory, as one array [n, *shape] of that memory each.

    Whoever has it holds the parts, too: it does not.
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
