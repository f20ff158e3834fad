"""Where one sequence's KV is. Engine thread only.

    positions    0 … length          full attention: blocks from the first token on
                 … length            windows: blocks of the last window + SLACK tokens at least

Shared blocks are never written: one that is not full is copied before its first new token. Blocks hold garbage after
their owners' tokens.
"""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import mlx.core as mx

SLACK: Final = 256
"""Tokens kept beyond the window: a sequence can be trimmed by as many."""


@dataclass(eq=False)
class BlockTable:
    """Blocks of `tokens` tokens, from position `first` on."""

    tokens: int
    blocks: list[int] = field(default_factory=list)
    first: int = 0

    def at(self, position: int) -> int:
        return self.blocks[(position - self.first) // self.tokens]

    def of(self, start: int, end: int) -> list[int]:
        return self.blocks[(start - self.first) // self.tokens : -(-(end - self.first) // self.tokens)]

    def kept_from(self, length: int) -> int:  # noqa: ARG002
        return self.first


@dataclass(eq=False)
class WindowTable(BlockTable):
    """Sliding layers' blocks, reused as they leave the window. `spare` are own ones without tokens, in no
    checkpoint.
    """

    window: int = 0
    spare: list[int] = field(default_factory=list)
    written: int = 0
    """Restored tokens may begin inside a block."""
    _own: set[int] = field(default_factory=set)
    _shared: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._own |= set(self.spare)

    @property
    def most(self) -> int:
        return -(-(self.window + SLACK) // self.tokens) + 1

    def kept_from(self, length: int) -> int:
        return max(self.first, self.written, length - self.window - SLACK)

    def slide(self, end: int) -> None:
        keep = max(0, end - self.window - SLACK) // self.tokens * self.tokens
        while self.blocks and self.first < keep:
            if self._is_free(block := self.blocks.pop(0)):
                self.spare.append(block)
            self.first += self.tokens
        if not self.blocks:
            self.first = max(self.first, keep)
        while self.first + len(self.blocks) * self.tokens < end:
            self.blocks.append(self.spare.pop())

    def share(self, length: int) -> list[int]:
        """Return a checkpoint's blocks, not reused until `take_back`."""
        found = self.of(self.kept_from(length), length)
        self._shared.update(found)
        return found

    def take_back(self, blocks: Items[int]) -> None:
        self._shared.subtract(blocks)
        self.spare += [block for block in blocks if self._is_free(block) and block not in self.blocks]

    def left(self, length: int) -> int:
        """Return how many own blocks would be in no checkpoint, after one more."""
        shared = self.of(self.kept_from(length), length)
        return sum(not self._shared[block] and block not in shared for block in self._own)

    def _is_free(self, block: int) -> bool:
        return block in self._own and not self._shared[block]


class States:
    """Arrays of recurrent layers, [rows, …]."""

    def __init__(self, layers: Items[Items[mx.array | None]]) -> None:
        self.layers = [list(arrays) for arrays in layers]

    @property
    def arrays(self) -> list[mx.array]:
        return [array for layer in self.layers for array in layer if array is not None]

    @property
    def empty(self) -> bool:
        return any(array is None for layer in self.layers for array in layer)

    def shared(self) -> "States":
        """Return other handles: assigning to elements leaves the originals."""
        return States([[a if a is None else a[...] for a in layer] for layer in self.layers])

    def rows(self, rows: Items[int]) -> "States":
        """Copies: views would keep all alive."""
        wanted = mx.array(list(rows))
        return States([[a if a is None else mx.take(a, wanted, axis=0) for a in layer] for layer in self.layers])


@dataclass(eq=False)
class Sequence:
    full: BlockTable
    length: int = 0
    shared: int = 0
    """Not written, even when computed again."""
    window: WindowTable | None = None
    states: States | None = None
    row: int = 0
    working: dict[int, "WorkingKV"] = field(default_factory=dict)
    arrays: bool = True
    """False: made for each pass from the blocks."""
    lost: bool = False
    """A window or state is gone: its layers cannot go on."""
    slots: list[int] = field(default_factory=list)
    ended: bool = False
    """Its blocks may be others' by now."""

    def trim(self, tokens: int) -> None:
        """Sets `lost` if a window or state cannot go back."""
        if tokens == self.length:
            return
        self.lost = self.lost or self.states is not None or not self._window_reaches(tokens)
        for each in self.working.values():
            each.trim(self.length - tokens)
            self.lost = self.lost or not each.reaches(tokens)
        self.length = tokens

    def _window_reaches(self, tokens: int) -> bool:
        table = self.window
        return table is None or max(table.first, table.written) <= max(0, tokens - table.window)


class Checkpoint(NamedTuple):
    """Windows and states at `position`: pieces with the last `tokens` tokens, that of states first."""

    position: int
    tokens: int
    pieces: tuple[int, ...]


def gathered(sequences: Items[Sequence]) -> States:
    """Return rows, uncopied if they lie so. Raises ValueError if only some have states."""
    first = sequences[0].states
    assert first is not None
    rows = [each.row for each in sequences]
    if all(each.states is first for each in sequences) and rows == list(range(_rows(first))):
        return first
    parts = [each.states.rows([each.row]) for each in sequences if each.states is not None]
    if any(part.empty for part in parts):
        if not all(part.empty for part in parts):
            raise ValueError("a sequence without a state cannot join others")
        return parts[0]
    joined = [
        [mx.concatenate([part.layers[layer][at] for part in parts]) for at in range(len(arrays))]  # type: ignore[misc]
        for layer, arrays in enumerate(first.layers)
    ]
    return States(joined)


def _rows(states: States) -> int:
    return next((int(array.shape[0]) for array in states.arrays), 1)


def with_slack(tokens: int) -> int:
    return -(-tokens // SLACK) * SLACK


class WorkingKV:
    """One layer's K and V as arrays [1, kv_heads, capacity, width]; a window keeps at least its last window + SLACK
    tokens.
    """

    def __init__(self, window: int = 0) -> None:
        self.window = window
        self.filled = 0
        self._arrays: list[mx.array] = []

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return views of all they see. A write while views live copies the buffers."""
        n, new = int(keys.shape[2]), (keys, values)
        if self._arrays and [each.shape[3] for each in self._arrays] != [each.shape[3] for each in new]:
            # Unpacked arrays are padded to whole groups.
            self._arrays = [array[..., : x.shape[3]] for array, x in zip(self._arrays, new, strict=True)]
        shown = n + (min(self.filled, self.window - 1) if self.window else self.filled)
        self._make_room(n)
        end = self.filled + n
        if not self._arrays:
            room = with_slack(end)
            self._arrays = [mx.zeros((*x.shape[:2], room, x.shape[3]), dtype=x.dtype) for x in new]
        for array, x in zip(self._arrays, new, strict=True):
            array[:, :, self.filled : end] = x
        self.filled = end
        k, v = (array[:, :, end - shown : end] for array in self._arrays)
        return k, v

    def take(self, keys: mx.array, values: mx.array, filled: int) -> None:
        self._arrays, self.filled = [keys, values], filled

    def _make_room(self, n: int) -> None:
        kept = self._kept(n)
        if not self._arrays or (kept == self.filled and self.filled + n <= int(self._arrays[0].shape[2])):
            return
        room = with_slack(kept + n) - kept
        held = [array[:, :, self.filled - kept : self.filled] for array in self._arrays]
        self._arrays = [
            mx.concatenate([each, mx.zeros((*each.shape[:2], room, each.shape[3]), dtype=each.dtype)], axis=2)
            for each in held
        ]
        self.filled = kept

    def _kept(self, n: int) -> int:
        if self.window and self.filled + n > self.window + 2 * SLACK:
            return min(self.filled, self.window + SLACK)
        return self.filled

    def growth(self, n: int) -> int:
        """Return the bytes of larger arrays, if n more tokens need them."""
        if not self._arrays or self._kept(n) < self.filled or self.filled + n <= int(self._arrays[0].shape[2]):
            return 0
        return sum(int(array.nbytes) for array in self._arrays)

    def trim(self, tokens: int) -> None:
        self.filled -= tokens

    def reaches(self, length: int) -> bool:
        return self.filled >= (min(length, self.window - 1) if self.window else length)

    @property
    def state(self) -> list[mx.array]:
        return self._arrays
