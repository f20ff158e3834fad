"""Drafts of a turn's next tokens: what followed the last ones further up (prompt-lookup decoding, Saxena, 2023), as
many as promise most for a step's time. Pure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

SIZES: Final = (1, 2, 3, 7, 15, 31, 63)
_LONGEST_DRAFT: Final = 31
_SHORTEST: Final = 3
_LONGEST: Final = 64
_COMPARED: Final = 64
_PRIORS: Final = ((4, 0.3), (8, 0.5), (16, 0.7), (32, 0.85), (_LONGEST + 1, 0.95))
"""(exclusive bound of a match, share of right guesses at first)."""
_PRIOR_WEIGHT: Final = 4.0
_DECAY: Final = 0.97
"""Factor on a guess's weight at each later one."""
_MARGIN: Final = 1.1
"""Tokens promised for each of a plain step."""


class Guess(NamedTuple):
    """With the probability that it and all before are right."""

    token: int
    likely: float


def chosen(guesses: Sequence[Sequence[Guess]], cost: Callable[[int], float]) -> list[list[int]]:
    """Empty if plain steps promise as much; `cost` is in plain steps."""
    ranked = sorted(((guess.likely, turn) for turn, each in enumerate(guesses) for guess in each), reverse=True)
    best, size, promised = _MARGIN * len(guesses), 0, float(len(guesses))
    for drafted, (likely, _) in enumerate(ranked, 1):
        promised += likely
        if drafted in SIZES and (rate := promised / cost(drafted)) > best:
            best, size = rate, drafted
    if not size:
        return []
    counts = Counter(turn for _, turn in ranked[:size])
    return [[guess.token for guess in each[: counts[turn]]] for turn, each in enumerate(guesses)]


class Drafter:
    """A search reads the whole array, 0.1 ms among 128K tokens; an index takes a hundred bytes a token."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """At least one."""
        self._length = len(tokens)
        self._tokens: npt.NDArray[np.int32] = np.empty(self._length + 1024, np.int32)
        self._tokens[: self._length] = tokens
        self._guess = 0
        self._match = 0
        self._guessed = [_PRIOR_WEIGHT for _ in _PRIORS]
        self._right = [_PRIOR_WEIGHT * prior for _, prior in _PRIORS]
        self._look_up()

    @property
    def tokens(self) -> int:
        return self._length

    def add(self, token: int) -> None:
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

    def guesses(self, most: int, ends: Collection[int]) -> list[Guess]:
        if not self._guess:
            return []
        found, likely = [], 1.0
        tokens: list[int] = self._tokens[self._guess : min(self._length, self._guess + most)].tolist()
        for at, token in enumerate(tokens[:_LONGEST_DRAFT]):
            if token in ends:
                break
            kind = _kind(self._match + at)
            likely *= self._right[kind] / self._guessed[kind]
            found.append(Guess(token, likely))
        return found

    def _look_up(self) -> None:
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
