"""Where one sequence's KV is: the blocks of its tokens, and the states of its recurrent layers. Engine thread only.

    positions    0 … length          full attention: blocks from the first token on
                 … length            windows: blocks of the last window + SLACK tokens at least

Blocks that others have, too, are never written: a block that is shared and not full is copied before the first token
goes there. What lies in a block behind the tokens that its owners count is garbage.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Final

import mlx.core as mx

SLACK: Final = 256
"""Tokens older than the window that a sequence keeps: it can be trimmed, and resumed before a checkpoint, so far."""


@dataclass(eq=False)
class BlockTable:
    """Blocks of `tokens` tokens each, whose positions begin at `first`, a multiple of that."""

    tokens: int
    blocks: list[int] = field(default_factory=list)
    first: int = 0

    def at(self, position: int) -> int:
        """The block that has the token at a position."""
        return self.blocks[(position - self.first) // self.tokens]

    def of(self, start: int, end: int) -> list[int]:
        """The blocks that have the tokens from `start` up to `end`."""
        return self.blocks[(start - self.first) // self.tokens : -(-(end - self.first) // self.tokens)]


@dataclass(eq=False)
class WindowTable(BlockTable):
    """The blocks of sliding layers. Those behind the window are used again for the tokens that come.

    `spare` are blocks of the sequence's own that have no tokens; `own` are all that it may use again.
    """

    window: int = 0
    spare: list[int] = field(default_factory=list)
    own: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.own |= set(self.spare)

    def kept_from(self, length: int) -> int:
        """The first position that a sequence of so many tokens keeps."""
        return max(self.first, length - self.window - SLACK)

    def slide(self, end: int) -> None:
        """Have room for tokens up to `end`, and none for those that are not kept then."""
        keep = max(0, end - self.window - SLACK) // self.tokens * self.tokens
        while self.blocks and self.first < keep:
            if (block := self.blocks.pop(0)) in self.own:
                self.spare.append(block)
            self.first += self.tokens
        if not self.blocks:
            self.first = max(self.first, keep)
        while self.first + len(self.blocks) * self.tokens < end:
            self.blocks.append(self.spare.pop())

    def share(self, length: int) -> list[int]:
        """The blocks of a checkpoint after `length` tokens; from now on they are not the sequence's own."""
        found = self.of(self.kept_from(length), length)
        self.own.difference_update(found)
        return found


class States:
    """Arrays of recurrent layers, [rows, …] for each of several sequences."""

    def __init__(self, layers: Items[Items[mx.array | None]]) -> None:
        self.layers = [list(arrays) for arrays in layers]

    @property
    def arrays(self) -> list[mx.array]:
        """All that there are, for `mx.eval`."""
        return [array for layer in self.layers for array in layer if array is not None]

    @property
    def empty(self) -> bool:
        """No token has gone into them."""
        return any(array is None for layer in self.layers for array in layer)

    def rows(self, rows: Items[int]) -> "States":
        """Some rows, copied: views would keep the whole alive."""
        wanted = mx.array(list(rows))
        return States([[a if a is None else mx.take(a, wanted, axis=0) for a in layer] for layer in self.layers])


@dataclass(eq=False)
class Sequence:
    """One sequence's KV: so many tokens, and where they are."""

    full: BlockTable
    length: int = 0
    window: WindowTable | None = None
    states: States | None = None
    row: int = 0
    """The sequence's row in `states`."""
    working: dict[int, "WorkingKV"] = field(default_factory=dict)
    """K and V as arrays by layer, where the device attends over these."""
    lost: bool = False
    """Layers that are not full attention cannot go on: their window or state is gone."""

    def trim(self, tokens: int) -> None:
        """Hold `tokens` tokens, no more than there are. What cannot go back that far is lost."""
        if tokens == self.length:
            return
        self.lost = self.lost or self.states is not None or not self._window_reaches(tokens)
        for each in self.working.values():
            each.trim(self.length - tokens)
        self.length = tokens

    def _window_reaches(self, tokens: int) -> bool:
        table = self.window
        return table is None or table.first <= max(0, tokens - table.window)


def gathered(sequences: Items[Sequence]) -> States:
    """The states of these sequences as rows in this order; as they are where they lie so already."""
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


class WorkingKV:
    """One layer's K and V of one sequence as arrays [1, kv_heads, capacity, width] in the model's own basis.

    `window` 0 is full attention. Of a window there are at least the last window + SLACK tokens.
    """

    def __init__(self, window: int = 0) -> None:
        self.window = window
        self.filled = 0
        self._arrays: list[mx.array] = []

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add n tokens; views of all that the last n of them see, of a window of no more. They must not outlive the
        step: a write while they live copies the buffers."""
        n = int(keys.shape[2])
        shown = n + (min(self.filled, self.window - 1) if self.window else self.filled)
        self._make_room(n)
        end = self.filled + n
        if not self._arrays:
            room = -(-end // SLACK) * SLACK
            self._arrays = [mx.zeros((*x.shape[:2], room, x.shape[3]), dtype=x.dtype) for x in (keys, values)]
        for array, new in zip(self._arrays, (keys, values), strict=True):
            array[:, :, self.filled : end] = new
        self.filled = end
        k, v = (array[:, :, end - shown : end] for array in self._arrays)
        return k, v

    def _make_room(self, n: int) -> None:
        """Drop what a window does not need where there is too much of it; grow where there is no room."""
        if not self._arrays:
            return
        kept = self.filled
        if self.window and self.filled + n > self.window + 2 * SLACK:
            kept = min(self.filled, self.window + SLACK)
        if kept == self.filled and self.filled + n <= int(self._arrays[0].shape[2]):
            return
        room = -(-(kept + n) // SLACK) * SLACK - kept
        held = [array[:, :, self.filled - kept : self.filled] for array in self._arrays]
        self._arrays = [
            mx.concatenate([each, mx.zeros((*each.shape[:2], room, each.shape[3]), dtype=each.dtype)], axis=2)
            for each in held
        ]
        self.filled = kept

    def trim(self, tokens: int) -> None:
        """Forget the last tokens."""
        self.filled -= tokens

    @property
    def state(self) -> list[mx.array]:
        """The arrays, for `mx.eval`."""
        return self._arrays
