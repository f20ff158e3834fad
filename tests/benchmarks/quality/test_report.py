"""Plots of the quality benchmark's figures, as they are written."""

import json

import pytest

from benchmarks.plots import drawable
from benchmarks.quality.models import figures
from benchmarks.quality.report import BAD, GOOD, OPEN, plots, right, verdict
from benchmarks.quality.scores import DECODE, PREFILL, Answer, Sample, Sums


def sample(worse: float, lost: bool = False) -> Sample:
    """A text whose loss is so many nats a token more with quantized KV. `lost`: its answers go wrong with it."""
    sums = dict.fromkeys((PREFILL, DECODE), Sums(100, 100 * (0.5 + worse), 50.0, 0.1, 0.1))
    return Sample(512, sums, sums, [Answer(phase, plain=True, quantized=not lost) for phase in sums])


ENOUGH = 200
FOUND = {
    GOOD: [sample(0.001)] * ENOUGH,
    BAD: [sample(0.03)] * ENOUGH,
    OPEN: [sample(0.001)] * 5,
}
"""Texts by what can be said of them."""


def test_plots_have_the_difference_in_percent_with_its_interval() -> None:
    by_bits = {"4": figures([sample(0.01), sample(0.03)]), "8": figures([sample(-0.001)])}
    [plot] = plots(json.loads(json.dumps({"models": {"llama (demo)": {"by_bits": by_bits}}})))
    [four], [eight] = (plot.series[f"{bits}-bit KV"] for bits in (4, 8))
    assert four.x == "llama (demo)"
    assert (four.y, four.low, four.high) == pytest.approx((2.02, 1.005, 3.045), abs=0.001)
    assert (eight.y, eight.low, eight.high) == pytest.approx((-0.1,) * 3, abs=0.001)
    assert plot.limit == pytest.approx(1.0)
    assert drawable(plots({"models": {}})) == []


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        *((samples, word) for word, samples in FOUND.items()),
        ([sample(0.001, lost=True)] * 10 + [sample(0.001)] * ENOUGH, BAD),
        ([sample(0.001, lost=True)] * 2 + [sample(0.001)] * 20, OPEN),
        ([sample(0.0), sample(0.03)] * 3, OPEN),
    ],
)
def test_what_too_few_texts_can_show_is_left_open(samples: list[Sample], expected: str) -> None:
    assert verdict(json.loads(json.dumps(figures(samples)))) == expected


@pytest.mark.parametrize(
    ("recommended", "four", "eight", "expected"),
    [
        (4, GOOD, GOOD, "right"),
        (4, BAD, GOOD, "wrong: 4 bits are not enough"),
        (4, OPEN, GOOD, OPEN),
        (8, GOOD, GOOD, "cautious: 4 bits are enough"),
        (8, BAD, GOOD, "right"),
        (8, BAD, BAD, "wrong: 8 bits are not enough"),
        (8, OPEN, GOOD, OPEN),
        (8, BAD, OPEN, OPEN),
        (0, BAD, BAD, "right"),
        (0, BAD, GOOD, "wrong"),
        (0, OPEN, BAD, OPEN),
    ],
)
def test_the_workers_word_is_judged_by_what_was_shown(recommended: int, four: str, eight: str, expected: str) -> None:
    by_bits = {"4": figures(FOUND[four]), "8": figures(FOUND[eight])}
    model = {"by_bits": by_bits, "worker": {"recommended_bits": recommended}}
    assert right(json.loads(json.dumps(model))) == expected
