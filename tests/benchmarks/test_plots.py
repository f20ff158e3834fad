"""Points of what was written, and what is left of plots that have none."""

from benchmarks.plots import Plot, Point, drawable, exact, line, point
from benchmarks.results import summary


def test_points() -> None:
    assert point(8, summary([3.0, 1.0, 2.0]), 1000) == Point(8, 2000.0, 1000.0, 3000.0)
    assert exact("p50", 2.0) == Point("p50", 2.0, 2.0, 2.0)


def test_a_line_goes_by_numbers_and_over_what_is_not_there() -> None:
    rows = {"32000": {"warm": summary([3.0])}, "4000": {"warm": summary([2.0])}, "16000": {"cold": summary([1.0])}}
    assert line(rows, "warm") == [exact(4000, 2.0), exact(32000, 3.0)]
    assert line(rows, "hot") == line({}, "warm") == []


def test_what_has_no_points_is_not_drawn() -> None:
    whole = Plot("a", "A", "x", "y", {"ours": [exact(1, 1.0)], "theirs": []})
    [left] = drawable([whole, Plot("b", "B", "x", "y", {"ours": []}), Plot("c", "C", "x", "y", {})])
    assert (left.name, list(left.series)) == ("a", ["ours"])
