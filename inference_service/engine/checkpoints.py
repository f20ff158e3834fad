"""Checkpoints: what a model needs besides blocks to go on from one position. Engine thread only.

That is the last tokens that its sliding layers keep, and the states of its recurrent layers. Prefill passes each
position once, and what these layers have dropped behind it can only be computed again from the beginning. So what a
later turn may resume from is kept while the caches stand at exactly that position.

Its file has the name of the block that ends there, and the kind `window`. A window is good for some tokens fewer than
it stands for; states are not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from agentmem.kv.blockfile import TENSORS
from inference_service.engine.caches import KVBuffers, SlidingQuantizedKVCache
from inference_service.engine.caches.states import StateCache
from inference_service.engine.geometry import MLX_DTYPE, Caches, Geometry, HostTensors, StateGroup, state_name
from inference_service.engine.uploading import host_bytes

States = Sequence[Sequence[mx.array]]
"""Each recurrent layer's arrays [1, …], evaluated, which nobody writes to."""


class Checkpoint(NamedTuple):
    """All of one sequence at `position`: each sliding layer's buffers [1, kv_heads, tokens, width], and the states."""

    position: int
    window: Sequence[KVBuffers] = ()
    states: States = ()

    @property
    def tokens(self) -> int:
        """The tokens before `position` that it stands for: those in the window, or all."""
        return self.window[0].filled if self.window else self.position

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(each.nbytes for each in self.window) + sum(int(a.nbytes) for layer in self.states for a in layer)


def captured(caches: Caches) -> Checkpoint | None:
    """A checkpoint where the caches stand; None for a model that has only full attention.

    The arrays are evaluated, and nothing writes to their memory. The window's is private; states are the caches' own.
    """
    window = [cache.buffers.last(cache.kept) for cache in caches if isinstance(cache, SlidingQuantizedKVCache)]
    states = states_of(caches)
    mx.eval([buffers.arrays for buffers in window], states)
    return Checkpoint(int(caches[0].offset), window, states) if window or states else None


def space_of(caches: Caches, geometry: Geometry) -> tuple[int, int]:
    """What the checkpoint where the caches stand takes in a pool: the tokens that it stands for, and pieces.

    Neither for a model of full attention alone, nor where a layer had to forget.
    """
    if geometry.resumes_anywhere or any(cache.empty() for cache in caches):
        return 0, 0
    if geometry.sliding is None:
        return int(caches[0].offset), 1
    window = next(cache.kept for cache in caches if isinstance(cache, SlidingQuantizedKVCache))
    return window, pieces_of(window, geometry)


def pieces_of(tokens: int, geometry: Geometry) -> int:
    """How many pieces a checkpoint takes that stands for so many tokens."""
    return 1 if geometry.sliding is None else -(-tokens // geometry.piece_tokens)


def states_of(caches: Caches) -> list[list[mx.array]]:
    """The arrays of the recurrent layers, shared with the caches, which replace them."""
    return [cache.shared() for cache in caches if isinstance(cache, StateCache)]


def keeps_checkpoints(caches: Caches) -> bool:
    """Whether some layers cannot go on from blocks alone."""
    return any(isinstance(cache, SlidingQuantizedKVCache | StateCache) for cache in caches)


def tensors_of(checkpoint: Checkpoint, group: StateGroup | None) -> dict[str, bytes]:
    """A private copy of a checkpoint as the tensors of a file, in host memory. Waits for the device."""
    return window_tensors(checkpoint.window) | state_tensors(checkpoint.states, group)


def window_tensors(window: Sequence[KVBuffers]) -> dict[str, bytes]:
    """Those of the sliding layers, stacked."""
    if not window:
        return {}
    end = window[0].filled
    return {name: host_bytes(mx.concatenate([each.part(name)[:, :, :end] for each in window])) for name in TENSORS}


def state_tensors(states: States, group: StateGroup | None) -> dict[str, bytes]:
    """Those of the recurrent layers, each array by itself."""
    if group is None:
        return {}
    return dict(zip(group.shapes, (host_bytes(array) for layer in states for array in layer), strict=True))


def uploaded_states(file: HostTensors, group: StateGroup | None) -> States:
    """The arrays of a checkpoint's file on the device, evaluated."""
    if group is None:
        return ()
    found = []
    for layer, arrays in zip(group.layers, group.arrays, strict=True):
        found.append([_array(file[state_name(layer, i)], array.dtype) for i, array in enumerate(arrays)])
    mx.eval(found)
    return found


def _array(host: npt.NDArray[np.generic], dtype: str) -> mx.array:
    wanted = MLX_DTYPE[dtype]
    array = mx.array(host)
    return (array if array.dtype == wanted else array.view(wanted))[None]
