"""Caches of recurrent layers: state space models, gated delta nets, linear attention, short convolutions.

Such a layer keeps a few arrays per sequence, of one size however long that is, and without an axis of tokens. So a
state stands for exactly the tokens behind it: it cannot be trimmed, and rows of a batch need no padding. It stays in
the dtype in which the model computes it.

mlx-lm's `ArraysCache` is what the models' modules know. Its lengths and left padding are for prefill of padded batches,
which there is none of here; so they stay None, and with them the masks that would take slower kernels.
"""

from collections.abc import Sequence
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache


class _States(ArraysCache):  # type: ignore[misc]  # mlx-lm has no types
    """What both have in common. `arrays` are [rows, …], or None before the first token. Engine thread only."""

    def __init__(self, arrays: Sequence[mx.array | None]) -> None:
        super().__init__(len(arrays))
        self.cache: list[mx.array | None] = list(arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """Those that there are."""
        return [array for array in self.cache if array is not None]

    @property
    def state(self) -> list[mx.array]:
        """The arrays, for `mx.eval`."""
        return self.arrays

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(array.nbytes) for array in self.arrays)

    def make_mask(self, n: int, **_: Any) -> None:
        """None is needed: rows have no padding."""

    def advance(self, n: int) -> None:
        """Some models tell how many tokens they took, and some do not; `Network` counts for all."""

    def settle(self) -> None:
        """Replace arrays that are views of a chunk's whole intermediate results, which would be kept with them.

        A gather, because mx.contiguous of a slice that is contiguous by itself shares its memory.
        """
        self.cache = [None if array is None else _gathered(array, range(array.shape[0])) for array in self.cache]


class StateCache(_States):
    """One layer's state of one sequence, behind `offset` tokens. Engine thread only."""

    def __init__(self, arrays: Sequence[mx.array | None], offset: int = 0) -> None:
        super().__init__(arrays)
        self.offset = offset
        self._compact = True

    def count(self, tokens: int) -> None:
        """So many tokens more have gone into the state."""
        self.offset += tokens
        self._compact = False

    def settle(self) -> None:
        """As of all; arrays that are no views stay as they are."""
        if not self._compact:
            super().settle()
            self._compact = True

    def shared(self) -> list[mx.array]:
        """The arrays, compact, by other handles: what assigns to elements of one does not change the other."""
        self.settle()
        return [array[...] for array in self.arrays]

    def size(self) -> int:
        """Tokens that have gone into the state."""
        return self.offset

    def can_trim(self, n: int) -> bool:
        """Whether the last `n` tokens can be forgotten: none can."""
        return n == 0

    def trim(self, n: int) -> int:
        """Forget nothing."""
        assert self.can_trim(n)
        return 0

    def forget(self, tokens: int) -> None:
        """Hold nothing of a sequence of so many tokens, from which nobody can go on here."""
        self.cache, self.offset = [None] * len(self.cache), tokens

    @staticmethod
    def merge(caches: "Sequence[StateCache]") -> "BatchStateCache":
        """A batch of one row per cache; the arrays of one cache alone are shared. None is empty."""
        first = caches[0]
        if len(caches) == 1:
            return BatchStateCache(first.cache, [first.offset])
        return BatchStateCache(_under_each_other([cache.cache for cache in caches]), [cache.offset for cache in caches])


class BatchStateCache(_States):
    """One layer's states of several sequences, each behind a number of tokens of its own. Engine thread only."""

    def __init__(self, arrays: Sequence[mx.array | None], offsets: Sequence[int]) -> None:
        super().__init__(arrays)
        self.offsets = list(offsets)

    @property
    def offset(self) -> mx.array:
        """Each row's tokens, int32 [rows]."""
        return mx.array(self.offsets)

    def count(self, tokens: int) -> None:
        """So many tokens more have gone into each row's state."""
        self.offsets = [offset + tokens for offset in self.offsets]

    def written(self, arrays: Sequence[mx.array]) -> None:
        """Take over what a compiled step has made of the arrays. Tokens are counted apart."""
        self.cache = list(arrays)

    def filter(self, rows: Sequence[int]) -> None:
        """Keep only some rows."""
        self.offsets = [self.offsets[row] for row in rows]
        self.cache = [None if array is None else _gathered(array, rows) for array in self.cache]

    def extend(self, other: Self) -> None:
        """Take in the rows of another batch."""
        self.offsets = [*self.offsets, *other.offsets]
        self.cache = _under_each_other([self.cache, other.cache])

    def extract(self, row: int) -> StateCache:
        """One row, copied."""
        arrays = [None if array is None else _gathered(array, [row]) for array in self.cache]
        return StateCache(arrays, self.offsets[row])


def _gathered(array: mx.array, rows: Sequence[int]) -> mx.array:
    return mx.take(array, mx.array(list(rows)), axis=0)


def _under_each_other(states: Sequence[Sequence[mx.array | None]]) -> list[mx.array | None]:
    """Rows of several states, array by array. Raises ValueError where some are empty and others are not."""
    found: list[mx.array | None] = []
    for arrays in zip(*states, strict=True):
        some = [array for array in arrays if array is not None]
        if some and len(some) != len(arrays):
            raise ValueError("an empty state cannot join others")
        found.append(mx.concatenate(some) if some else None)
    return found
