"""How far quantized KV is from unquantized: perplexity, divergence and recall of the same texts. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.intervals import Interval, Recall, mean

PREFILL, DECODE = "prefill", "decode"
PHASES = (PREFILL, DECODE)


@dataclass(frozen=True)
class Sums:
    """Over some tokens of one text in one phase; losses and divergence in nats."""

    tokens: int
    loss: float
    plain_loss: float
    divergence: float


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
    """Perplexity with quantized KV over that without, by a paired bootstrap over texts."""
    rows = [[sample.sums[phase] for phase in phases] for sample in samples]
    excess = [sum(each.loss - each.plain_loss for each in row) for row in rows]
    return mean(excess, [sum(each.tokens for each in row) for row in rows]).map(math.exp)


def perplexity(samples: Sequence[Sample], quantized: bool, phases: Sequence[str] = PHASES) -> float:
    """Over all tokens."""
    sums = [sample.sums[phase] for sample in samples for phase in phases]
    loss = sum(each.loss if quantized else each.plain_loss for each in sums)
    return math.exp(loss / sum(each.tokens for each in sums))


def divergence(samples: Sequence[Sample], phases: Sequence[str] = PHASES) -> float:
    """Mean KL divergence in nats, unquantized against quantized."""
    sums = [sample.sums[phase] for sample in samples for phase in phases]
    return sum(each.divergence for each in sums) / sum(each.tokens for each in sums)


def recall(samples: Sequence[Sample], phases: Sequence[str] = PHASES) -> Recall:
    """Over all answers."""
    return Recall.of(
        [(answer.plain, answer.quantized) for sample in samples for answer in sample.answers if answer.phase in phases]
    )
