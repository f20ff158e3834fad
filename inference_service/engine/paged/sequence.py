"""Where one sequence's KV is: the blocks of its tokens, and the states of its recurrent layers. Engine thread only.

    positions    0 … length          full attention: blocks from the first token on
                 … length            windows: blocks of the last window + SLACK tokens at least

Blocks that others have, too, are never written: a block that is shared and not full is copied before the first token
goes there. What lies in a block behind the tokens that its owners count is garbage.
"""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Final, NamedTuple

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

    def kept_from(self, length: int) -> int:  # noqa: ARG002
        """The first position that a sequence of so many tokens keeps."""
        return self.first


@dataclass(eq=False)
class WindowTable(BlockTable):
    """The blocks of sliding layers. Those behind the window are used again for the tokens that come.

    `spare` are blocks of the sequence's own, at first all of them, that have no tokens and are in no checkpoint.
    """

    window: int = 0
    spare: list[int] = field(default_factory=list)
    written: int = 0
    """The first position that is written: what was restored may begin inside of a block."""
    _own: set[int] = field(default_factory=set)
    _shared: Counter[int] = field(default_factory=Counter)
    """In how many checkpoints blocks are."""

    def __post_init__(self) -> None:
        self._own |= set(self.spare)

    @property
    def most(self) -> int:
        """Blocks that it has at most."""
        return -(-(self.window + SLACK) // self.tokens) + 1

    def kept_from(self, length: int) -> int:
        """The first position that a sequence of so many tokens keeps."""
        return max(self.first, self.written, length - self.window - SLACK)

    def slide(self, end: int) -> None:
        """Have room for tokens up to `end`, and none for those that are not kept then."""
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
        """The blocks of a checkpoint after `length` tokens. They are not used again, unless it is taken back."""
        found = self.of(self.kept_from(length), length)
        self._shared.update(found)
        return found

    def take_back(self, blocks: Items[int]) -> None:
        """A checkpoint of these blocks is not needed any more."""
        self._shared.subtract(blocks)
        self.spare += [block for block in blocks if self._is_free(block) and block not in self.blocks]

    def left(self, length: int) -> int:
        """Blocks of its own that would be in no checkpoint if there were one after `length` tokens."""
        shared = self.of(self.kept_from(length), length)
        return sum(not self._shared[block] and block not in shared for block in self._own)

    def _is_free(self, block: int) -> bool:
        return block in self._own and not self._shared[block]


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

    def shared(self) -> "States":
        """The arrays by other handles: what assigns to elements of these does not change those."""
        return States([[a if a is None else a[...] for a in layer] for layer in self.layers])

    def rows(self, rows: Items[int]) -> "States":
        """Some rows, copied: views would keep the whole alive."""
        wanted = mx.array(list(rows))
        return States([[a if a is None else mx.take(a, wanted, axis=0) for a in layer] for layer in self.layers])


@dataclass(eq=False)
class Sequence:
    """One sequence's KV: so many tokens, and where they are."""

    full: BlockTable
    length: int = 0
    shared: int = 0
    """Tokens in blocks of full attention that others have, too: not written, even where they are computed again."""
    window: WindowTable | None = None
    states: States | None = None
    row: int = 0
    """The sequence's row in `states`."""
    working: dict[int, "WorkingKV"] = field(default_factory=dict)
    """K and V as arrays by layer, where the device attends over these and there is memory for it."""
    arrays: bool = True
    """There is; else a layer's are made for each pass, of what is in the blocks."""
    lost: bool = False
    """Layers that are not full attention cannot go on: their window or state is gone."""
    slots: list[int] = field(default_factory=list)
    """Pieces of its own under which checkpoints keep states."""
    ended: bool = False
    """Its blocks may be others' by now: what is still computed of it is not written."""

    def trim(self, tokens: int) -> None:
        """Hold `tokens` tokens, no more than there are. What cannot go back that far is lost."""
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
    """All that a model needs besides blocks to go on from `position`: pieces that have the last `tokens` tokens before
    it, the first one the place of the states, if there are some.
    """

    position: int
    tokens: int
    pieces: tuple[int, ...]


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
        n, new = int(keys.shape[2]), (keys, values)
        if self._arrays and [each.shape[3] for each in self._arrays] != [each.shape[3] for each in new]:
            # They were unpacked, and are filled up to whole groups.
            self._arrays = [array[..., : x.shape[3]] for array, x in zip(self._arrays, new, strict=True)]
        shown = n + (min(self.filled, self.window - 1) if self.window else self.filled)
        self._make_room(n)
        end = self.filled + n
        if not self._arrays:
            room = -(-end // SLACK) * SLACK
            self._arrays = [mx.zeros((*x.shape[:2], room, x.shape[3]), dtype=x.dtype) for x in new]
        for array, x in zip(self._arrays, new, strict=True):
            array[:, :, self.filled : end] = x
        self.filled = end
        k, v = (array[:, :, end - shown : end] for array in self._arrays)
        return k, v

    def _make_room(self, n: int) -> None:
        """Drop what a window does not need where there is too much of it; grow where there is no room."""
        kept = self._kept(n)
        if not self._arrays or (kept == self.filled and self.filled + n <= int(self._arrays[0].shape[2])):
            return
        room = -(-(kept + n) // SLACK) * SLACK - kept
        held = [array[:, :, self.filled - kept : self.filled] for array in self._arrays]
        self._arrays = [
            mx.concatenate([each, mx.zeros((*each.shape[:2], room, each.shape[3]), dtype=each.dtype)], axis=2)
            for each in held
        ]
        self.filled = kept

    def _kept(self, n: int) -> int:
        """Tokens that stay before n more."""
        if self.window and self.filled + n > self.window + 2 * SLACK:
            return min(self.filled, self.window + SLACK)
        return self.filled

    def growth(self, n: int) -> int:
        """Bytes of the arrays that n more tokens take the place of these with; 0 where there is room."""
        if not self._arrays or self._kept(n) < self.filled or self.filled + n <= int(self._arrays[0].shape[2]):
            return 0
        return sum(int(array.nbytes) for array in self._arrays)

    def trim(self, tokens: int) -> None:
        """Forget the last tokens."""
        self.filled -= tokens

    def reaches(self, length: int) -> bool:
        """Return whether all is there that the token after `length` ones sees."""
        return self.filled >= (min(length, self.window - 1) if self.window else length)

    @property
    def state(self) -> list[mx.array]:
        """The arrays, for `mx.eval`."""
        return self._arrays
