"""Readings one after the other: what each is compared with, and the restarts between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.cli.top.interval import Interval, restarted
from gateway.cli.top.page import Page
from gateway.cli.top.reading import SERVICES, Reading, Service, Silence


@dataclass(frozen=True)
class Observation:
    """A process at the latest reading: its page, or why there is none; what happened since its page was last read,
    which None says was never; and how often it was seen to have been restarted."""

    page: Page | Silence
    interval: Interval | None = None
    restarts: int = 0


@dataclass
class History:
    """What readings told so far; `tell` it each one in turn."""

    reading: Reading | None = None
    seconds: float = 0.0
    """Between the latest two readings."""
    processes: dict[Service, Observation] = field(default_factory=dict)
    _good: dict[Service, Page] = field(default_factory=dict)

    def tell(self, reading: Reading) -> None:
        """The next reading."""
        self.seconds = reading.at - self.reading.at if self.reading else 0.0
        for service in SERVICES:
            self.processes[service] = self._observed(service, reading)
        self.reading = reading

    def _observed(self, service: Service, reading: Reading) -> Observation:
        page, known = reading.pages[service], self.processes.get(service)
        restarts = known.restarts if known else 0
        if isinstance(page, Silence):
            return Observation(page, None, restarts)
        before = self._good.get(service)
        self._good[service] = page
        if before is None:
            return Observation(page, None, restarts)
        if restarted(before, page):
            # Who did not answer at the reading before has done all of this since then, or little earlier.
            since = self.reading.at if self.reading else None
            return Observation(page, Interval(before, page, since), restarts + 1)
        return Observation(page, Interval(before, page), restarts)
