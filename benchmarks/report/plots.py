"""Draws plots with matplotlib, which is a dependency of development only."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.plots import Plot, Point

_SIZE = (7.2, 4.6)
_DPI = 110
_WHOLE = 10
"""From here on numbers of an axis are shown without tenths."""
_CHARACTERS = 76
"""That fit side by side below the axis."""


def draw(plot: Plot, path: Path) -> None:
    """Write one PNG of a plot that is `drawable`."""
    figure_of(plot).savefig(path, metadata={"Software": None})


def figure_of(plot: Plot) -> Figure:
    """What is written."""
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    named = _named(plot)
    (_bars if named else _lines)(plot, axes)
    if plot.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    axes.set_title(plot.title, fontsize="medium")
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3, axis="y" if named else "both")
    if plot.limit is not None:
        axes.axhline(plot.limit, color="gray", linestyle="--", label="limit")
    if plot.band is not None:
        axes.axhspan(plot.band.low, plot.band.high, color="gray", alpha=0.15, label=plot.band.label)
    if (entries := len(plot.series) + (plot.limit is not None) + (plot.band is not None)) > 1:
        rows = -(-entries // 3)
        figure.legend(loc="outside lower center", ncols=-(-entries // rows), fontsize="small", frameon=False)
    return figure


def _named(plot: Plot) -> bool:
    return any(isinstance(point.x, str) for points in plot.series.values() for point in points)


def _spread(points: Sequence[Point]) -> tuple[list[float], list[float]] | None:
    """Below and above, None where there is none. An interval's ends may miss its value by the last bit."""
    below, above = [max(0.0, each.y - each.low) for each in points], [max(0.0, each.high - each.y) for each in points]
    return (below, above) if any(below + above) else None


def _lines(plot: Plot, axes: Axes) -> None:
    for number, (name, points) in enumerate(plot.series.items()):
        x = [float(point.x) for point in points]
        y = [point.y for point in points]
        marker = "os^Dv<>p"[number % 8]
        axes.errorbar(x, y, yerr=_spread(points), marker=marker, markersize=4, capsize=3, label=name)
    ticks = sorted({float(point.x) for points in plot.series.values() for point in points})
    if plot.log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(
        ticks,
        [f"{tick:,.{0 if tick.is_integer() or tick >= _WHOLE else 1}f}" for tick in ticks],
        rotation=30 if len(ticks) > 8 else 0,
    )
    axes.minorticks_off()


def _bars(plot: Plot, axes: Axes) -> None:
    groups = list(dict.fromkeys(str(point.x) for points in plot.series.values() for point in points))
    stacks = _stacks(plot)
    width = 0.8 / len(stacks)
    for number, stack in enumerate(stacks):
        reached = dict.fromkeys(groups, 0.0)
        for name in stack:
            points = plot.series[name]
            at = [str(point.x) for point in points]
            x = [groups.index(group) + (number - (len(stacks) - 1) / 2) * width for group in at]
            bottom = [reached[group] for group in at]
            axes.bar(x, [point.y for point in points], width, bottom, yerr=_spread(points), capsize=3, label=name)
            for group, point in zip(at, points, strict=True):
                reached[group] += point.y
    columns = max(8, _CHARACTERS // len(groups))
    axes.set_xticks(range(len(groups)), [textwrap.fill(group, columns, break_long_words=False) for group in groups])
    if plot.log:
        every = [point for points in plot.series.values() for point in points]
        axes.set_ylim(min(point.low for point in every) / 2, max(point.high for point in every) * 2)


def _stacks(plot: Plot) -> list[list[str]]:
    """Which series stand on one another: all of them, most often alone."""
    stacked = [[name for name in stack if name in plot.series] for stack in plot.stacks]
    alone = [[name] for name in plot.series if not any(name in stack for stack in stacked)]
    return [stack for stack in (*stacked, *alone) if stack]
