"""What happened in a process between two readings of its page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gateway.cli.top.names import START
from gateway.cli.top.page import Page, summed
from gateway.cli.top.quantiles import histogram_quantile


def restarted(before: Page, after: Page) -> bool:
    """Whether the pages are of two processes: begun at other times, or what only grows became smaller."""
    begun = before.total(START), after.total(START)
    if None not in begun:
        return begun[0] != begun[1]
    old = {(name, labels): value for name, labels, value in before.cumulative}
    return any(value < old.get((name, labels), 0.0) for name, labels, value in after.cumulative)


class Interval:
    """The differences of two pages of a process. No increase and no rate is ever negative.

    A process that was restarted began at zero, and so did a series that is new, or smaller than it was. What happened,
    happened between the pages, or later than `since`, on their clock, where that is given.
    """

    def __init__(self, before: Page, after: Page, since: float | None = None) -> None:
        self._before = Page() if restarted(before, after) else before
        self._after = after
        self.seconds = after.at - (before.at if since is None else max(since, before.at))

    def _grown(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], float]]:
        before = self._before.series(name, **labels)
        for key, one in self._after.series(name, **labels).items():
            old = before[key].value if key in before else 0.0
            yield one.labels, one.value - old if one.value >= old else max(0.0, one.value)

    def increase(self, name: str, **labels: str) -> float | None:
        """By how much the sum of a counter's series grew; None where there is none."""
        grown = [value for _, value in self._grown(name, labels)]
        return math.fsum(grown) if grown else None

    def increases(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The same by the value of one more label."""
        return summed(label, self._grown(name, labels))

    def rate(self, name: str, **labels: str) -> float | None:
        """The increase per second."""
        increase = self.increase(name, **labels)
        return None if increase is None or self.seconds <= 0 else increase / self.seconds

    def quantile(self, quantile: float, name: str, **labels: str) -> float | None:
        """A quantile of what a histogram observed in the interval, all its series together; None if nothing."""
        grown = summed("le", self._grown(f"{name}_bucket", labels))
        return histogram_quantile(quantile, {float(bound): count for bound, count in grown.items()})
