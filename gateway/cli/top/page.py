"""One metrics page of a process, parsed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from gateway.cli.top.names import SAMPLES

Labels = frozenset[tuple[str, str]]

_NAME: Final = re.compile(r"[^{ ]*")
_CUMULATIVE: Final = ("counter", "histogram")


class Series(NamedTuple):
    """One line of a page."""

    labels: Mapping[str, str]
    value: float


class PageError(Exception):
    """What was read is no metrics page."""


class Page:
    """The series of a page by the names of their samples. Values that are no finite numbers are left out.

    `at` is when it was read, in seconds on a clock that never goes back.
    """

    def __init__(self, at: float = 0.0) -> None:
        self.at = at
        self._series: dict[str, dict[Labels, Series]] = {}
        self._cumulative: set[str] = set()

    @classmethod
    def parse(cls, text: str, at: float) -> Self:
        """The page of a text in Prometheus' format, as far as figures are made of it. Raises PageError."""
        page = cls(at)
        try:
            for family in text_string_to_metric_families(_wanted(text)):
                for sample in family.samples:
                    page._add(sample.name, sample.labels, float(sample.value), family.type in _CUMULATIVE)
        except (ValueError, IndexError, KeyError) as error:
            raise PageError("is no page of metrics") from error
        if not page._series:
            raise PageError("has no metrics")
        return page

    def _add(self, name: str, labels: Mapping[str, str], value: float, cumulative: bool) -> None:
        if math.isfinite(value):
            self._series.setdefault(name, {})[frozenset(labels.items())] = Series(labels, value)
            if cumulative:
                self._cumulative.add(name)

    def series(self, name: str, **labels: str) -> dict[Labels, Series]:
        """The series of a sample's name that have these labels, and maybe others."""
        wanted = labels.items()
        return {key: one for key, one in self._series.get(name, {}).items() if wanted <= key}

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of those series; None where there is none."""
        found = self.series(name, **labels).values()
        return math.fsum(one.value for one in found) if found else None

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The sums of those series by the value of one more label; series without it are left out."""
        return summed(label, ((one.labels, one.value) for one in self.series(name, **labels).values()))

    def values_of(self, label: str, name: str) -> list[str]:
        """The values that a label has on a sample, sorted."""
        return sorted({one.labels[label] for one in self.series(name).values() if label in one.labels})

    @property
    def cumulative(self) -> Iterator[tuple[str, Labels, float]]:
        """All series that only grow while their process lives."""
        for name in self._cumulative:
            for key, one in self._series[name].items():
                yield name, key, one.value


def _wanted(text: str) -> str:
    """The lines that figures are made of: parsing all of a page takes four times as long."""
    lines = text.split("\n")
    return "\n".join(line for line in lines if line.startswith("# TYPE ") or _name(line) in SAMPLES)


def _name(line: str) -> str:
    found = _NAME.match(line)
    return found[0] if found else ""


def summed(label: str, series: Iterator[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    """Sums by the value of a label, sorted by it."""
    sums: dict[str, float] = {}
    for labels, value in series:
        if label in labels:
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
    return dict(sorted(sums.items()))
