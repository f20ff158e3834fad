"""Quantiles of divergences that were counted by size, against those of the divergences."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality.measuring import Sums
from benchmarks.quality.spread import BINS, counted, quantile


@pytest.fixture(scope="module")
def drawn() -> list[np.ndarray]:
    """Return texts, some harder than others."""
    numbers = np.random.default_rng(3)
    return [numbers.lognormal(-5 + 0.3 * text, 2.0, 2000) for text in range(6)]


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
def test_a_quantile_is_right_to_five_percent(drawn: list[np.ndarray], share: float) -> None:
    found = quantile([counted(text) for text in drawn], share)
    assert found.value == pytest.approx(np.quantile(np.concatenate(drawn), share), rel=0.05)
    assert found.low < found.value < found.high


def test_parts_of_a_text_together_are_the_text(drawn: list[np.ndarray]) -> None:
    text = drawn[0]
    parts = [Sums(len(some), 1.0, float(some.sum()), 2, counted(some)) for some in (text[:700], text[700:])]
    assert parts[0].plus(parts[1]) == Sums(2000, 2.0, pytest.approx(text.sum()), 4, counted(text))


def test_what_is_no_number_is_among_the_largest() -> None:
    assert counted(np.array([np.nan, np.inf, 1e9])) == {BINS - 1: 3}
    assert counted(np.array([0.0, -1e-9, 1e-12])) == {0: 3}
