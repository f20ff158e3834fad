"""Drafts of a turn's next tokens, from earlier matches of its last ones. Pure.

Agents repeat parts of their context: quotations, code with one change, JSON. Prompt-lookup decoding (Saxena, 2023)
drafts from that without a second model: find the last tokens further up, and expect the tokens that followed there.

The share of right guesses is tracked by length of match. Each generated token counts, drafted or not, so guesses not
worth a draft cost a look-up, and no step of the model. A draft has the size that promises the most tokens for its time;
there is none if plain steps promise as many.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

SIZES: Final = (1, 2, 3, 7, 15, 31)
"""Tokens of a draft. Few sizes, so that kernels and costs are soon known; a step computes one token more."""
_SHORTEST: Final = 3
"""Fewest tokens of a match."""
_LONGEST: Final = 64
"""Most tokens compared: a longer match is no better evidence."""
_COMPARED: Final = 64
"""Latest earlier matches that are compared."""
_PRIORS: Final = ((4, 0.3), (8, 0.5), (16, 0.7), (32, 0.85), (_LONGEST + 1, 0.95))
"""(exclusive bound of a match's tokens, share of right guesses until the turn has its own)."""
_PRIOR_WEIGHT: Final = 4.0
"""In guesses."""
_DECAY: Final = 0.97
"""Factor on a guess's weight at each later guess of its kind."""
_MARGIN: Final = 1.1
"""Tokens that a draft has to promise for the time of a plain step."""


class Drafter:
    """One turn's tokens, and drafts of the next ones. One thread at a time.

    A search reads the whole array of tokens: an index of n-grams would take a hundred bytes for each token of each
    turn, and as long to build as hundreds of searches take (0.1 ms among 128K tokens).
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        """`tokens` are the turn's so far, at least one."""
        self._length = len(tokens)
        self._tokens: npt.NDArray[np.int32] = np.empty(self._length + 1024, np.int32)
        self._tokens[: self._length] = tokens
        self._guess = 0
        """Index of the next token's guess; 0 if there is none."""
        self._match = 0
        """Tokens before the guess that equal the last ones, as far as compared."""
        self._guessed = [_PRIOR_WEIGHT for _ in _PRIORS]
        self._right = [_PRIOR_WEIGHT * prior for _, prior in _PRIORS]
        self._look_up()

    @property
    def tokens(self) -> int:
        """Number of known tokens."""
        return self._length

    def add(self, token: int) -> None:
        """Add the next token, and count whether its guess was right."""
        if self._guess:
            right, kind = token == self._tokens[self._guess], _kind(self._match)
            self._guessed[kind] = _DECAY * self._guessed[kind] + 1
            self._right[kind] = _DECAY * self._right[kind] + right
            self._guess, self._match = (self._guess + 1, self._match + 1) if right else (0, 0)
        if self._length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self._length] = token
        self._length += 1
        if not self._guess:
            self._look_up()

    def draft(self, most: int, ends: Collection[int], cost: Callable[[int], float]) -> list[int]:
        """Return the next tokens, at most `most` and none of `ends`, as many as pay best; empty if none do.

        `cost` returns the time of a step of so many tokens, in steps of one.
        """
        if not self._guess:
            return []
        guesses: list[int] = self._tokens[self._guess : min(self._length, self._guess + most)].tolist()
        best, size, likely, promised = _MARGIN, 0, 1.0, 1.0
        for tokens, token in enumerate(guesses[: SIZES[-1]], 1):
            if token in ends:
                break
            kind = _kind(self._match + tokens - 1)
            likely *= self._right[kind] / self._guessed[kind]
            promised += likely
            if tokens in SIZES and (rate := promised / cost(tokens + 1)) > best:
                best, size = rate, tokens
        return guesses[:size]

    def _look_up(self) -> None:
        """Find the longest match of the last tokens further up; of equals the latest."""
        end, tokens = self._length, self._tokens
        if end <= _SHORTEST:
            return
        found = tokens[_SHORTEST - 1 : end - 1] == tokens[end - 1]
        for before in range(1, _SHORTEST):
            found &= tokens[_SHORTEST - 1 - before : end - 1 - before] == tokens[end - 1 - before]
        guesses = (np.flatnonzero(found) + _SHORTEST)[: -_COMPARED - 1 : -1]
        if not len(guesses):
            return
        back = np.arange(1, min(end, _LONGEST) + 1)
        at = guesses[:, None] - back
        same = (at >= 0) & (tokens[at] == tokens[end - back])
        matches = np.where(same.all(axis=1), len(back), same.argmin(axis=1))
        best = matches.argmax()
        self._guess, self._match = int(guesses[best]), int(matches[best])


def _kind(match: int) -> int:
    return next((kind for kind, (below, _) in enumerate(_PRIORS) if match < below), len(_PRIORS) - 1)
