"""How far quantized KV is from unquantized: perplexity, divergence and recall of the same texts, with intervals.

Texts are what was drawn at random, not tokens: those of one dialogue go wrong together. So the interval of perplexity
resamples whole texts, each with both of its losses. Recall is paired as well: McNemar's exact test says whether losses
and gains of single answers differ by more than chance, and the interval of the difference is Bonett and Price's (2012),
which has a width also where no answer changed. Pure; NumPy only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

PREFILL, DECODE = "prefill", "decode"
PHASES = (PREFILL, DECODE)
Z = 1.959964
"""Of 95 %."""
DRAWS = 10_000
MOST_RATIO = 1.01
"""Perplexity within 1 %: the interval's upper end."""
MOST_LOSS = 0.02
"""Recall within noise: no significant loss, and the interval excludes one larger than this."""
SIGNIFICANT = 0.05


class Interval(NamedTuple):
    """A figure with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Sums:
    """Over some tokens of one text in one phase; log-probabilities in nats.

    `worst` is by how much the right token's log-probability fell at most.
    """

    tokens: int
    loss: float
    plain_loss: float
    divergence: float
    worst: float


@dataclass(frozen=True)
class Answer:
    """One answer: right when every token of it, the end token included, is the first choice."""

    phase: str
    plain: bool
    quantized: bool


@dataclass(frozen=True)
class Sample:
    """One text: `sums` by phase over what the assistant says, `all_sums` over all tokens, the user's included."""

    length: int
    sums: dict[str, Sums]
    all_sums: dict[str, Sums]
    answers: list[Answer]

    def with_all_tokens(self) -> "Sample":
        """The same with `all_sums` for `sums`."""
        return replace(self, sums=self.all_sums)


def ratio(samples: Sequence[Sample], phases: Sequence[str] = PHASES) -> Interval:
    """Perplexity with quantized KV over that without, by a paired bootstrap over texts. Always the same draws."""
    rows = [[sample.sums[phase] for phase in phases] for sample in samples]
    excess = np.array([sum(each.loss - each.plain_loss for each in row) for row in rows])
    tokens = np.array([sum(each.tokens for each in row) for row in rows])
    chosen = np.random.default_rng(0).integers(len(rows), size=(DRAWS, len(rows)))
    drawn = np.exp(excess[chosen].sum(axis=1) / np.maximum(1, tokens[chosen].sum(axis=1)))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(float(np.exp(excess.sum() / tokens.sum())), float(low), float(high))


def perplexity(samples: Sequence[Sample], quantized: bool, phases: Sequence[str] = PHASES) -> float:
    """Over all tokens."""
    sums = [sample.sums[phase] for sample in samples for phase in phases]
    loss = sum(each.loss if quantized else each.plain_loss for each in sums)
    return math.exp(loss / sum(each.tokens for each in sums))


def divergence(samples: Sequence[Sample], phases: Sequence[str] = PHASES) -> float:
    """Mean KL divergence in nats, unquantized against quantized."""
    sums = [sample.sums[phase] for sample in samples for phase in phases]
    return sum(each.divergence for each in sums) / sum(each.tokens for each in sums)


def worst(samples: Sequence[Sample]) -> float:
    """By how much a right token's log-probability fell at most, in nats."""
    return max(each.worst for sample in samples for each in sample.sums.values())


def wilson(right: int, asked: int) -> Interval:
    """A share with Wilson's interval."""
    if not asked:
        return Interval(math.nan, 0.0, 1.0)
    share, square = right / asked, Z * Z / asked
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / asked + square / asked / 4) / (1 + square)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True)
class Recall:
    """Of `asked` answers `plain` are right without quantization; with it `lost` are not, and `gained` others are."""

    asked: int
    plain: int
    lost: int
    gained: int

    @property
    def quantized(self) -> int:
        """Right with quantized KV."""
        return self.plain - self.lost + self.gained

    @property
    def difference(self) -> Interval:
        """Quantized minus unquantized, as shares."""
        if not self.asked:
            return Interval(math.nan, -1.0, 1.0)
        lost, gained = (self.lost + 1) / (self.asked + 2), (self.gained + 1) / (self.asked + 2)
        half = Z * math.sqrt((lost + gained - (gained - lost) ** 2) / (self.asked + 2))
        return Interval((self.gained - self.lost) / self.asked, gained - lost - half, gained - lost + half)

    @property
    def chance(self) -> float:
        """McNemar's exact test, two-sided: how probable so uneven losses and gains are if both were equally likely."""
        changed = self.lost + self.gained
        tail: int = sum(math.comb(changed, each) for each in range(min(self.lost, self.gained) + 1))
        return float(min(1.0, 2 * tail / 2**changed))


def recall(samples: Sequence[Sample], phases: Sequence[str] = PHASES) -> Recall:
    """Over all answers."""
    answers = [answer for sample in samples for answer in sample.answers if answer.phase in phases]
    return Recall(
        len(answers),
        sum(answer.plain for answer in answers),
        sum(answer.plain and not answer.quantized for answer in answers),
        sum(answer.quantized and not answer.plain for answer in answers),
    )


def recall_holds(found: Recall) -> bool:
    """Whether recall is within noise."""
    lost_by_chance = found.lost <= found.gained or found.chance >= SIGNIFICANT
    return lost_by_chance and found.difference.low >= -MOST_LOSS


def good(samples: Sequence[Sample]) -> bool:
    """Whether quantized KV is as good as unquantized, in both phases together. NaN never is."""
    return ratio(samples).high <= MOST_RATIO and recall_holds(recall(samples))
