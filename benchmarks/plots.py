"""A picture of figures, as data: a benchmark's `plots(figures)` makes it, `benchmarks.report.plots` draws it.

`plots` is pure and works on what was written, as `tables` does, and on the part of it that a run leaves that was cut
short: a series or a plot for which there are no points yet may be there without any.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A median with its spread; `x` is a number on a line's axis, or the name of a group of bars."""

    x: float | str
    y: float
    low: float
    high: float


class Band(NamedTuple):
    """A range of y that the series are to be seen beside, with its name."""

    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Plot:
    """Lines over numbers, or groups of bars over names, by series. `name` is part of the file's.

    `stacks` are series of bars that stand on one another, from below, and take one place in each group.
    `limit` is the figure that is not to be passed, as a line across; `band` is a range to compare with.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Point]]
    log: bool = False
    stacks: Sequence[Sequence[str]] = ()
    limit: float | None = None
    band: Band | None = None


def point(x: float | str, summary: Mapping[str, float], factor: float = 1.0) -> Point:
    """Of `results.summary`."""
    return Point(x, *(summary[name] * factor for name in ("median", "min", "max")))


def exact(x: float | str, y: float) -> Point:
    """Of a figure that has no spread."""
    return Point(x, y, y, y)


def line(rows: Mapping[str, Mapping[str, Any]], name: str, factor: float = 1.0) -> list[Point]:
    """The summaries called `name` of rows that have one, over the numbers by which the rows are known."""
    return [point(int(x), rows[x][name], factor) for x in sorted(rows, key=int) if name in rows[x]]


def drawable(plots: Iterable[Plot]) -> list[Plot]:
    """Without series that have no points, and without plots that then have no series."""
    full = [replace(plot, series={name: points for name, points in plot.series.items() if points}) for plot in plots]
    return [plot for plot in full if plot.series]
