"""Perplexity's ratio over texts in both phases, and which answers count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.architectures.scores import (
    DECODE,
    PREFILL,
    Answer,
    Sample,
    Sums,
    divergence,
    perplexity,
    ratio,
    recall,
)
from benchmarks.intervals import Recall


def sample(loss: float, plain: float, tokens: int = 100, answers: str = "", phase: str = DECODE) -> Sample:
    """One text, half of it in each phase. `answers`: "=" right both times, "-" lost, "+" gained, "x" never right."""
    sums = {each: Sums(tokens, loss * tokens, plain * tokens, 0.5 * tokens) for each in (PREFILL, DECODE)}
    return Sample(512, sums, sums, [Answer(phase, kind in "=-", kind in "=+") for kind in answers])


def test_what_is_equal_has_no_ratio_but_one() -> None:
    found = ratio([sample(0.3, 0.3), sample(1.0, 1.0)])
    assert found == (1.0, 1.0, 1.0)


def test_the_ratio_of_a_constant_change_is_exact() -> None:
    samples = [sample(0.31, 0.3, tokens) for tokens in (50, 100, 400)]
    assert ratio(samples) == pytest.approx([math.exp(0.01)] * 3)
    assert perplexity(samples, True) / perplexity(samples, False) == pytest.approx(math.exp(0.01))
    assert divergence(samples, (DECODE,)) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.integers(1, 900)), min_size=1, max_size=20))
def test_the_ratio_lies_in_its_interval_s_reach(texts: list[tuple[float, float, int]]) -> None:
    samples = [sample(*each) for each in texts]
    found = ratio(samples)
    each = [ratio([one]).value for one in samples]
    assert min(each) * 0.999999 <= found.low <= found.high <= max(each) * 1.000001
    assert min(each) * 0.999999 <= found.value <= max(each) * 1.000001


def test_recall_counts_answers_of_the_phases_asked_for() -> None:
    samples = [sample(0, 0, answers="==-+x"), sample(0, 0, answers="--", phase=PREFILL)]
    assert recall(samples) == Recall(7, 5, 3, 1)
    assert recall(samples, (PREFILL,)) == Recall(2, 2, 2, 0)
    assert recall(samples).quantized == 3
