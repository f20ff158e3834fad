"""Pictures: that they are some, and where the bars of a stack stand."""

from importlib import import_module
from pathlib import Path

import pytest
from matplotlib.image import imread

from benchmarks.__main__ import NAMES
from benchmarks.plots import Band, Plot, Point, exact
from benchmarks.report.plots import draw, figure_of

SPREAD = (2.0, 1.0, 4.0)


@pytest.mark.parametrize("x", [(1024.0, 4096.0), ("cold", "warm")])
@pytest.mark.parametrize("log", [False, True])
def test_what_is_written_is_a_picture(tmp_path: Path, x: tuple[float | str, ...], log: bool) -> None:
    series = {name: [Point(each, *SPREAD) for each in x] for name in ("ours", "theirs")}
    draw(Plot("p", "Title", "tokens", "ms", series, log), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    pixels = imread(tmp_path / "p.png")
    assert pixels.shape == (506, 792, 4)
    assert len({tuple(pixel) for pixel in pixels[::7, ::7, :3].reshape(-1, 3).tolist()}) > 2, "it has colours"


def test_bars_of_a_stack_stand_on_one_another_and_others_beside_them() -> None:
    series = {"load": [exact("1K", 2.0), exact("2K", 3.0)], "rest": [exact("2K", 1.0)], "alone": [exact("1K", 4.0)]}
    [axes] = figure_of(Plot("p", "", "", "", series, stacks=[("load", "rest", "absent")])).axes
    bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
    assert bars == [(0, 2), (0, 3), (3, 1), (0, 4)]
    left = [bar.get_x() for bar in axes.patches]
    assert left == pytest.approx([-0.4, 0.6, 0.6, 0.0])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1K", "2K"]


@pytest.mark.parametrize("x", ["model", 1.0])
def test_a_figure_to_reach_is_a_line_with_a_name(x: float | str) -> None:
    figure = figure_of(Plot("p", "", "", "%", {"ours": [exact(x, 0.1)]}, limit=1.0))
    [axes] = figure.axes
    assert axes.get_ylim()[1] > 1
    [legend] = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"limit", "ours"}
    assert not figure_of(Plot("p", "", "", "%", {"ours": [exact(x, 0.1)]})).legends


def test_numbers_of_an_axis_are_not_rounded_to_others() -> None:
    [axes] = figure_of(Plot("p", "", "", "", {"ours": [exact(x, 1.0) for x in (4.5, 5.0, 12_240.4)]})).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4.5", "5", "12,240"]


def test_long_names_of_groups_are_broken() -> None:
    names = [f"the {number}th of eight conversations" for number in range(8)]
    [axes] = figure_of(Plot("p", "", "", "", {"ours": [exact(name, 1.0) for name in names]})).axes
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert [text.replace("\n", " ") for text in shown] == names
    assert all("\n" in text for text in shown)


def test_an_interval_that_misses_its_value_by_a_bit_is_drawn() -> None:
    for x in ("model", 1.0):
        figure_of(Plot("p", "", "", "", {"4 bits": [Point(x, 1.0, 1.0 + 1e-15, 1.0 - 1e-15)]}))


def test_axes_by_logarithms_say_numbers() -> None:
    for x in (("cold", "warm"), (16.0, 1024.0)):
        points = [Point(x[0], 0.012, 0.011, 0.013), Point(x[1], 0.07, 0.06, 0.08)]
        [axes] = figure_of(Plot("p", "", "", "", {"ours": points}, log=True)).axes
        low, high = axes.get_ylim()
        labels = [label.get_text() for label in axes.get_yticklabels()]
        seen = [text for text, at in zip(labels, axes.get_yticks(), strict=True) if low <= at <= high]
        assert {"0.02", "0.05"} <= set(seen)
        assert low < 0.011


def test_a_band_is_drawn_beside_the_series_and_named() -> None:
    points = [Point(1.0, 5.0, 4.0, 6.0), Point(2.0, 2.0, 1.0, 3.0)]
    figure = figure_of(Plot("p", "", "", "", {"ours": points}, band=Band(-0.7, 3.0, "the paper's")))
    [axes] = figure.axes
    [shade] = [patch for patch in axes.patches if patch.get_label() == "the paper's"]
    assert shade.get_extents().height > 0
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"ours", "the paper's"}


@pytest.mark.parametrize(
    "name",
    [
        "architectures",
        "break-even",
        "capacity",
        "memory",
        "prefix",
        "quality",
        "restart",
        "throughput",
        "ttft",
    ],
)
def test_these_have_plots(name: str) -> None:
    assert callable(import_module(NAMES[name]).plots)
