"""Figures with 95 % intervals: means, shares, and differences of paired answers. Pure.

A bootstrap resamples whole texts, since the tokens of one text go wrong together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

Z = 1.959964
DRAWS = 10_000


class Interval(NamedTuple):
    value: float
    low: float
    high: float

    def map(self, function: Callable[[float], float]) -> Self:
        return type(self)(*map(function, self))


def mean(sums: Sequence[float], counts: Sequence[float]) -> Interval:
    """Return the mean of samples with sums and counts, by a bootstrap over samples with always the same draws."""
    each, weights = np.array(sums, dtype=np.float64), np.array(counts, dtype=np.float64)
    chosen = np.random.default_rng(0).integers(len(each), size=(DRAWS, len(each)))
    drawn = each[chosen].sum(axis=1) / np.maximum(1, weights[chosen].sum(axis=1))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(float(each.sum() / weights.sum()), float(low), float(high))


def wilson(right: int, asked: int) -> Interval:
    if not asked:
        return Interval(math.nan, 0.0, 1.0)
    share, square = right / asked, Z * Z / asked
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / asked + square / asked / 4) / (1 + square)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True)
class Recall:
    """`plain` of `asked` answers are right without quantization; with it `lost` are not, and `gained` others are."""

    asked: int
    plain: int
    lost: int
    gained: int

    @classmethod
    def of(cls, answers: Sequence[tuple[bool, bool]]) -> Self:
        return cls(
            len(answers),
            sum(plain for plain, _ in answers),
            sum(plain and not quantized for plain, quantized in answers),
            sum(quantized and not plain for plain, quantized in answers),
        )

    @property
    def quantized(self) -> int:
        return self.plain - self.lost + self.gained

    @property
    def difference(self) -> Interval:
        """Return quantized minus unquantized, as shares, by Bonett and Price's interval (2012), wide also where none
        changed.
        """
        if not self.asked:
            return Interval(math.nan, -1.0, 1.0)
        lost, gained = (self.lost + 1) / (self.asked + 2), (self.gained + 1) / (self.asked + 2)
        half = Z * math.sqrt((lost + gained - (gained - lost) ** 2) / (self.asked + 2))
        return Interval((self.gained - self.lost) / self.asked, gained - lost - half, gained - lost + half)

    @property
    def chance(self) -> float:
        """McNemar's exact test, two-sided."""
        changed = self.lost + self.gained
        tail: int = sum(math.comb(changed, each) for each in range(min(self.lost, self.gained) + 1))
        return float(min(1.0, 2 * tail / 2**changed))


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    return pearson(_ranks(x), _ranks(y))


def _ranks(values: Sequence[float]) -> list[float]:
    _, inverse, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: list[float] = (last - (counts - 1) / 2)[inverse].tolist()
    return shared
