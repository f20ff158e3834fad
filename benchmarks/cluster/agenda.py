"""Events in the order of their times: a heap of what comes soon, and lists of what comes later.

Most of what waits are pauses of agents. A heap of a hundred thousand of them would be touched by every event; so a time
that is some periods away is a list's entry until its period begins.
"""

from collections import defaultdict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

Event = tuple[float, int, Callable[..., None], Any]
"""When, a number that no other has, what is called, with which argument and the time."""


class Agenda:
    """Events at the same time happen in the order in which they were added."""

    def __init__(self, period: float = 0.25) -> None:
        self._period = period
        self._soon: list[Event] = []
        self._later: dict[int, list[Event]] = defaultdict(list)
        self._begun = 0
        self._number = 0

    def at(self, when: float, happens: Callable[..., None], what: Any) -> None:
        """Have something happen at a time, which is not before that of the event that happens now."""
        self._number += 1
        event = (when, self._number, happens, what)
        if (period := int(when / self._period)) > self._begun:
            self._later[period].append(event)
        else:
            heappush(self._soon, event)

    def run(self, until: float) -> None:
        """Let everything happen up to and including a time."""
        last = int(until / self._period)
        while True:
            soon = self._soon
            while soon and soon[0][0] <= until:
                when, _, happens, what = heappop(soon)
                happens(what, when)
            if self._begun >= last:
                return
            self._begun += 1
            soon.extend(self._later.pop(self._begun, ()))
            heapify(soon)
