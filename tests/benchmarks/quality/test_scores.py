"""Perplexity's bootstrap, and the intervals of recall."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.scores import (
    DECODE,
    PREFILL,
    Answer,
    Recall,
    Sample,
    Sums,
    good,
    perplexity,
    ratio,
    recall,
    recall_holds,
    wilson,
    worst,
)


def sample(loss: float, plain: float, tokens: int = 100, answers: str = "", phase: str = DECODE) -> Sample:
    """One text, half of it in each phase. `answers`: "=" right both times, "-" lost, "+" gained, "x" never right."""
    sums = {each: Sums(tokens, loss * tokens, plain * tokens, 0.5 * tokens, abs(loss)) for each in (PREFILL, DECODE)}
    return Sample(512, sums, sums, [Answer(phase, kind in "=-", kind in "=+") for kind in answers])


def test_what_is_equal_has_no_ratio_but_one() -> None:
    found = ratio([sample(0.3, 0.3), sample(1.0, 1.0)])
    assert found == (1.0, 1.0, 1.0)


def test_the_ratio_of_a_constant_change_is_exact() -> None:
    samples = [sample(0.31, 0.3, tokens) for tokens in (50, 100, 400)]
    assert ratio(samples) == pytest.approx([math.exp(0.01)] * 3)
    assert perplexity(samples, True) / perplexity(samples, False) == pytest.approx(math.exp(0.01))
    assert worst(samples) == pytest.approx(0.31)


def test_the_interval_knows_that_texts_differ_and_not_that_they_are_long() -> None:
    """Ten texts, one of which is spoiled: with ten times as many tokens in each they say no more."""
    short = [sample(1.0 if number == 0 else 0.3, 0.3, 100) for number in range(10)]
    long = [sample(1.0 if number == 0 else 0.3, 0.3, 1000) for number in range(10)]
    low, high = ratio(short)[1:]
    assert low == 1.0
    assert high > ratio(short).value * 1.05
    assert ratio(long) == pytest.approx(ratio(short))


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.integers(1, 900)), min_size=1, max_size=20))
def test_the_ratio_lies_in_its_interval_s_reach(texts: list[tuple[float, float, int]]) -> None:
    samples = [sample(*each) for each in texts]
    found = ratio(samples)
    each = [ratio([one]).value for one in samples]
    assert min(each) * 0.999999 <= found.low <= found.high <= max(each) * 1.000001
    assert min(each) * 0.999999 <= found.value <= max(each) * 1.000001


@given(st.integers(1, 3000).flatmap(lambda asked: st.tuples(st.integers(0, asked), st.just(asked))))
def test_wilson_has_the_share_in_it(pair: tuple[int, int]) -> None:
    right, asked = pair
    found = wilson(right, asked)
    assert 0 <= found.low <= right / asked + 1e-12
    assert right / asked - 1e-12 <= found.high <= 1
    assert found.low < found.high


def test_wilson_as_published() -> None:
    """Newcombe (1998), his table of examples: 81 of 263, and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.3080, 0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)


@pytest.mark.parametrize(("lost", "gained", "chance"), [(0, 0, 1.0), (6, 0, 1 / 32), (1, 5, 14 / 64), (3, 3, 1.0)])
def test_mcnemar(lost: int, gained: int, chance: float) -> None:
    assert Recall(100, 90, lost, gained).chance == pytest.approx(chance)


@given(st.integers(0, 60), st.integers(0, 60))
def test_losses_and_gains_mirror_each_other(lost: int, gained: int) -> None:
    there, back = Recall(300, 150, lost, gained), Recall(300, 150, gained, lost)
    assert there.chance == back.chance <= 1
    assert there.difference.low == pytest.approx(-back.difference.high)
    assert there.difference.low <= there.difference.value <= there.difference.high


def test_recall_counts_answers_of_the_phases_asked_for() -> None:
    samples = [sample(0, 0, answers="==-+x"), sample(0, 0, answers="--", phase=PREFILL)]
    assert recall(samples) == Recall(7, 5, 3, 1)
    assert recall(samples, (PREFILL,)) == Recall(2, 2, 2, 0)
    assert recall(samples).quantized == 3


def test_when_recall_holds() -> None:
    assert recall_holds(Recall(600, 600, 0, 0))
    assert recall_holds(Recall(600, 590, 3, 1))
    assert not recall_holds(Recall(600, 600, 6, 0)), "1 %, but no chance"
    assert not recall_holds(Recall(600, 500, 30, 20)), "may be chance, but may be a loss of 4 % as well"
    assert not recall_holds(Recall(60, 60, 0, 0)), "too few to exclude a loss"
    assert not recall_holds(Recall(0, 0, 0, 0))


def test_what_is_good() -> None:
    assert good([sample(0.301, 0.3, answers="=" * 300)])
    assert not good([sample(0.301, 0.3, answers="=" * 280 + "-" * 20)])
    assert not good([sample(0.32, 0.3, answers="=" * 300)])
    assert not good([sample(math.nan, 0.3, answers="=" * 300)])
