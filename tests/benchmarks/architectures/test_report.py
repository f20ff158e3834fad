"""What is said of architectures, from figures as they are written."""

import json
from typing import Any

import pytest

from benchmarks.architectures.models import figures
from benchmarks.architectures.report import claims, plots, tables
from benchmarks.architectures.scores import DECODE, PREFILL, Answer, Sample, Sums
from benchmarks.plots import drawable


def sample(lost: bool = False) -> Sample:
    """A text with two answers. `lost`: they go wrong with quantized KV."""
    sums = dict.fromkeys((PREFILL, DECODE), Sums(100, 51.0, 50.0, 2.0))
    return Sample(512, sums, sums, [Answer(phase, plain=True, quantized=not lost) for phase in sums])


def written(four: list[Sample], **of_model: str) -> dict[str, Any]:
    model = {"by_bits": {"4": figures(four), "8": figures([sample()])}, **of_model}
    found: dict[str, Any] = json.loads(json.dumps({"models": {"llama (demo)": model}}))
    return found


def test_a_row_says_the_scheme_and_what_was_lost() -> None:
    [table] = tables(written([sample(), sample(lost=True)], scheme="rotated"))
    first, second = table.rows
    assert first[0] == "llama (demo), 4 bits, rotated"
    assert (first[1], first[4], first[-1]) == ("4", "2 / 0", "2.0e-02")
    assert second[0] == "llama (demo), 8 bits, rotated"
    assert tables(written([sample()]))[0].rows[0][0] == "llama (demo), 4 bits, plain"


@pytest.mark.parametrize(
    ("samples", "met"),
    [([sample()] * 200, True), ([sample()] * 200 + [sample(lost=True)] * 10, False), ([sample()] * 5, False)],
)
def test_a_loss_must_be_excluded_by_enough_questions(samples: list[Sample], met: bool) -> None:
    [claim] = claims(written(samples))
    assert claim.met is met


def test_the_plot_has_a_series_for_each_number_of_bits() -> None:
    [plot] = plots(written([sample()]))
    assert list(plot.series) == ["4-bit KV", "8-bit KV"]
    assert [point.y for points in plot.series.values() for point in points] == pytest.approx([0.02, 0.02])
    assert drawable(plots({"models": {}})) == []
