"""Starts of sequences, and checkpoints in the pool's pieces. Engine thread only."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from inference_service.engine.geometry import MLX_DTYPE, Geometry, HostTensors, StateGroup, state_name
from inference_service.engine.paged.arena import Arena, Reading
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.sequence import Checkpoint, Sequence, States, WindowTable
from inference_service.engine.paged.writing import put


@dataclass(frozen=True, eq=False)
class Start:
    """KV of `tokens` tokens to start from, with `blocks` for all that it can grow to. The first `shared` tokens are
    others'. `cut` is (a block, its own copy); `files` are own blocks with their tensors. `arrays`: there is memory for
    K and V as arrays.
    """

    blocks: Items[int]
    pieces: Items[int] = ()
    tokens: int = 0
    shared: int = 0
    cut: tuple[int, int] | None = None
    files: Items[tuple[int, HostTensors]] = ()
    checkpoint: Checkpoint | None = None
    window_file: HostTensors | None = None
    window_surplus: int = 0
    arrays: bool = True


class Checkpoints:
    def __init__(self, geometry: Geometry, pieces: int, segment_pieces: int | None = None) -> None:
        self._geometry = geometry
        self._segment_pieces = segment_pieces or max(1, pieces)
        self._states: dict[int, States] = {}
        """By first piece."""
        self.windows: Arena | None = None
        if geometry.sliding is not None:
            shapes = geometry.shapes(geometry.sliding, geometry.piece_tokens)
            self.windows = Arena.of(BlockLayout(shapes), pieces, segment_pieces)

    @property
    def nbytes(self) -> int:
        states = sum(int(array.nbytes) for states in self._states.values() for array in states.arrays)
        return states + (self.windows.nbytes if self.windows is not None else 0)

    def close(self) -> None:
        if self.windows is not None:
            self.windows.close()
        self._states.clear()

    def release(self, segments: Iterable[int]) -> None:
        closed = set(segments)
        if self.windows is not None:
            self.windows.release(closed)
        self._forget(piece for piece in list(self._states) if piece // self._segment_pieces in closed)

    def begin(self, sequence: Sequence, pieces: Iterable[int]) -> None:
        own = list(pieces)
        self._forget(own)
        if self._geometry.states is not None:
            count = len(own) if self.windows is None else len(own) // self._geometry.checkpoint_pieces
            own, sequence.slots = own[count:], own[:count]
        if self.windows is not None:
            self.windows.take(own)
            sequence.window = WindowTable(self._geometry.piece_tokens, window=self._geometry.window, spare=own)

    def go_on(self, sequence: Sequence, checkpoint: Checkpoint, tokens: int) -> None:
        """A partly filled last piece is copied."""
        states, window = self._parts(checkpoint)
        if states is not None:
            sequence.states, sequence.row = states.shared(), 0
        if (table := sequence.window) is not None and self.windows is not None:
            table.written = checkpoint.position - checkpoint.tokens
            table.first = table.written // table.tokens * table.tokens
            table.blocks = list(window[: -(-(tokens - table.first) // table.tokens)])
            if (tokens - table.first) % table.tokens:
                own = table.spare.pop()
                self.windows.copy(table.blocks[-1], own)
                table.blocks[-1] = own

    def load(self, sequence: Sequence, file: HostTensors, tokens: int, surplus: int) -> None:
        """Go on from a file, without the window's last `surplus` tokens."""
        geometry = self._geometry
        if (table := sequence.window) is not None and self.windows is not None and geometry.sliding is not None:
            window = {name: file[name] for name in geometry.shapes(geometry.sliding, 1)}
            table.written = start = tokens - (next(iter(window.values())).shape[2] - surplus)
            table.first = start // table.tokens * table.tokens
            table.blocks = [table.spare.pop() for _ in range(-(-(tokens - table.first) // table.tokens))]
            put(self.windows, table, start, window, tokens)
        if geometry.states is not None:
            sequence.states, sequence.row = States(uploaded_states(file, geometry.states)), 0

    def capture(self, sequence: Sequence, *, last: bool = False) -> Checkpoint | None:
        """Return a checkpoint at the end; None for full attention, lost layers, and without pieces for it and, unless
        it is the `last`, for going on.
        """
        geometry, kept, table = self._geometry, int(not last), sequence.window
        if geometry.resumes_anywhere or sequence.lost:
            return None
        if geometry.states is not None and (sequence.states is None or len(sequence.slots) <= kept):
            return None
        if table is not None and table.left(sequence.length) < kept * table.most:
            return None
        pieces, tokens = [], sequence.length
        if sequence.states is not None:
            slot = sequence.slots.pop()
            states = sequence.states.rows([sequence.row])
            mx.eval(states.arrays)
            self._states[slot] = states
            pieces.append(slot)
        if table is not None:
            tokens -= table.kept_from(sequence.length)
            pieces += table.share(sequence.length)
        return Checkpoint(sequence.length, tokens, tuple(pieces))

    def drop(self, sequence: Sequence, checkpoint: Checkpoint) -> None:
        pieces = list(checkpoint.pieces)
        if self._geometry.states is not None:
            sequence.slots.append(pieces.pop(0))
            self._forget(sequence.slots[-1:])
        if sequence.window is not None:
            sequence.window.take_back(pieces)

    def read(self, checkpoint: Checkpoint) -> Reading:
        states, window = self._parts(checkpoint)
        readings: list[Reading] = []
        if self.windows is not None:
            first = checkpoint.position - checkpoint.tokens
            readings.append(self.windows.read_run(window, first, checkpoint.position))
        if (group := self._geometry.states) is not None and states is not None:
            names, copies = group.shapes, host_copies(states.arrays)
            readings.append(lambda: dict(zip(names, copies(), strict=True)))
        return lambda: {name: data for reading in readings for name, data in reading().items()}

    def _parts(self, checkpoint: Checkpoint) -> tuple[States | None, tuple[int, ...]]:
        """Return states, and pieces of the window."""
        pieces = checkpoint.pieces
        return (None, pieces) if self._geometry.states is None else (self._states[pieces[0]], pieces[1:])

    def _forget(self, pieces: Iterable[int]) -> None:
        for piece in pieces:
            self._states.pop(piece, None)


def host_copies(arrays: Items[mx.array]) -> Callable[[], list[bytes]]:
    """Begin to copy arrays. Any thread may wait for the bytes, row-major."""
    begun = [mx.contiguous(array) for array in arrays]
    begun = [array.view(mx.uint16) if array.dtype.size == 2 else array for array in begun]
    mx.async_eval(begun)  # type: ignore[no-untyped-call]
    return lambda: [bytes(memoryview(cast(Any, array))) for array in begun]


def uploaded_states(file: HostTensors, group: StateGroup) -> list[list[mx.array]]:
    """Return states [1, …] by layer and array, evaluated."""
    found = []
    for layer, arrays in zip(group.layers, group.arrays, strict=True):
        found.append([_array(file[state_name(layer, i)], array.dtype) for i, array in enumerate(arrays)])
    mx.eval(found)
    return found


def _array(host: npt.NDArray[np.generic], dtype: str) -> mx.array:
    wanted = MLX_DTYPE[dtype]
    array = mx.array(host)
    return (array if array.dtype == wanted else array.view(wanted))[None]
