"""The ledger's time on this node: the last heartbeat's, and what has passed here since."""

import threading
import time
from typing import Final

from cache_service.ledger.clock import BOOT_CLOCK, Moment

_NEVER: Final = Moment(0, 0)
_MOST: Final = 10 * 10**9
"""Nanoseconds that pass from one heartbeat to the next at most."""


class SharedClock:
    """`set` on one thread, all else on any.

    Agents are idle by a time that all nodes share (`nodes.beat`): it passes while any of them runs, and no step of a
    machine's clock counts. Between two heartbeats it passes for seconds only, so that an outage of the database makes
    nobody idle. A slow heartbeat's earlier time stands until it is past.
    """

    def __init__(self) -> None:
        self._said = _NEVER, 0
        self._last = _NEVER
        self._lock = threading.Lock()

    def set(self, used: int, wall: int) -> None:
        """Take the ledger's time, and the server's clock, in nanoseconds, a moment ago."""
        self._said = Moment(wall, used), time.clock_gettime_ns(BOOT_CLOCK)

    def time(self) -> int:
        """Nanoseconds since about 1970; never goes back."""
        return self.now().used

    def now(self) -> Moment:
        with self._lock:
            (wall, used), at = self._said
            passed = time.clock_gettime_ns(BOOT_CLOCK) - at
            wall, used = wall + passed, used + min(passed, _MOST)
            if self._last.wall - _MOST < wall:
                wall = max(wall, self._last.wall)
            self._last = Moment(wall, max(used, self._last.used))
            return self._last

    def advance(self) -> None:
        """Nothing: heartbeats do."""
