"""Bootstrapped means, intervals of recall, and correlations."""

from __future__ import annotations

import math

import pytest

from benchmarks.intervals import Recall, mean, pearson, spearman, wilson


def test_a_mean_is_over_what_was_counted_and_not_over_samples() -> None:
    assert mean([10.0, 1.0], [100, 1]).value == pytest.approx(11 / 101)
    assert mean([0.5, 1.0, 2.0], [1, 2, 4]) == pytest.approx((0.5, 0.5, 0.5))


def test_the_interval_of_many_samples_is_that_of_the_normal_distribution() -> None:
    found = mean([float(number % 2) for number in range(400)], [1] * 400)
    assert found == pytest.approx((0.5, 0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.003)


def test_wilson_as_published() -> None:
    """Newcombe (1998), his table of examples: 81 of 263, and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.3080, 0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)


@pytest.mark.parametrize(("lost", "gained", "chance"), [(0, 0, 1.0), (6, 0, 1 / 32), (1, 5, 14 / 64), (3, 3, 1.0)])
def test_mcnemar(lost: int, gained: int, chance: float) -> None:
    assert Recall(100, 90, lost, gained).chance == pytest.approx(chance)


def test_recall_of_answers() -> None:
    found = Recall.of([(True, True)] * 4 + [(True, False)] * 3 + [(False, True)] * 2 + [(False, False)])
    assert found == Recall(10, 7, 3, 2)
    assert found.quantized == 6


def test_no_answers_exclude_nothing() -> None:
    assert Recall(0, 0, 0, 0).difference[1:] == (-1.0, 1.0)
    assert wilson(0, 0)[1:] == (0.0, 1.0)


def test_correlations() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    assert pearson(x, [2.0, 4.0, 6.0, 8.0]) == pytest.approx(1.0)
    assert pearson(x, [math.exp(-each) for each in x]) > -0.95
    assert spearman(x, [math.exp(-each) for each in x]) == pytest.approx(-1.0)
    assert spearman([1.0, 1.0, 2.0], [5.0, 5.0, 6.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.9487, abs=1e-4)
    assert math.isnan(pearson([1.0, 2.0], [1.0, 2.0]))
    assert math.isnan(spearman([1.0, 1.0, 1.0], x[:3]))
