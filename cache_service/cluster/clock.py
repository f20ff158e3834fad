"""The ledger's time on this node: the last heartbeat's, and what has passed here since."""

import threading
import time
from typing import Final

from cache_service.ledger.clock import BOOT_CLOCK, LedgerClock, Moment

_NEVER: Final = Moment(0, 0)
_MOST: Final = 10 * 10**9
"""Nanoseconds from one heartbeat to the next."""


class SharedClock(LedgerClock):
    """`set` on one thread, all else on any.

    Between two heartbeats this time passes for seconds only: an outage of the database makes no agent idle.
    """

    def __init__(self) -> None:
        self._said = _NEVER, 0
        self._last = _NEVER
        self._lock = threading.Lock()

    def set(self, used: int, wall: int) -> None:
        """Take the ledger's time, and the server's clock, in nanoseconds."""
        self._said = Moment(wall, used), time.clock_gettime_ns(BOOT_CLOCK)

    def now(self) -> Moment:
        with self._lock:
            (wall, used), at = self._said
            passed = time.clock_gettime_ns(BOOT_CLOCK) - at
            wall, used = wall + passed, used + min(passed, _MOST)
            if self._last.wall - _MOST < wall:
                wall = max(wall, self._last.wall)
            self._last = Moment(wall, max(used, self._last.used))
            return self._last
