"""Plots of the quality benchmark's figures, as they are written."""

import json

import pytest

from benchmarks.plots import drawable
from benchmarks.quality.models import figures
from benchmarks.quality.report import plots
from benchmarks.quality.scores import DECODE, PREFILL, Answer, Sample, Sums


def sample(worse: float) -> Sample:
    """A text whose loss is so many nats a token more with quantized KV."""
    sums = dict.fromkeys((PREFILL, DECODE), Sums(100, 100 * (0.5 + worse), 50.0, 0.1, 0.1))
    return Sample(512, sums, sums, [Answer(phase, plain=True, quantized=True) for phase in sums])


def test_plots_have_the_difference_in_percent_with_its_interval() -> None:
    by_bits = {"4": figures([sample(0.01), sample(0.03)]), "8": figures([sample(-0.001)])}
    [plot] = plots(json.loads(json.dumps({"models": {"llama (demo)": {"by_bits": by_bits}}})))
    [four], [eight] = (plot.series[f"{bits}-bit KV"] for bits in (4, 8))
    assert four.x == "llama (demo)"
    assert (four.y, four.low, four.high) == pytest.approx((2.02, 1.005, 3.045), abs=0.001)
    assert (eight.y, eight.low, eight.high) == pytest.approx((-0.1,) * 3, abs=0.001)
    assert plot.limit == pytest.approx(1.0)
    assert drawable(plots({"models": {}})) == []
