"""The ledger's time on this node: what the last heartbeat has said, and what has passed here since."""

import threading
import time
from typing import Final

from cache_service.ledger.clock import BOOT_CLOCK, Moment

_NEVER: Final = Moment(0, 0)
_MOST: Final = 10 * 10**9
"""Nanoseconds that pass from one heartbeat to the next at most."""


class SharedClock:
    """`set` on one thread, all else on any.

    Agents are idle by a time that all nodes have in common (`nodes.beat`): it passes while any of them runs, and no
    step of a machine's clock counts, neither of a node nor of the server. Between two heartbeats it passes for seconds
    only: where the database is away for hours, nobody could use an agent meanwhile.

    A heartbeat that took longer than the last brings an earlier time than `now` has returned already. That stands until
    it is past, so that an agent is never updated before it was created. Only the shown time follows a server's clock
    that is set back, by more than a node is served without a heartbeat.
    """

    def __init__(self) -> None:
        self._said = _NEVER, 0
        self._last = _NEVER
        self._lock = threading.Lock()

    def set(self, used: int, wall: int) -> None:
        """The ledger's time, and the server's clock, in nanoseconds, a moment ago."""
        self._said = Moment(wall, used), time.clock_gettime_ns(BOOT_CLOCK)

    def time(self) -> int:
        """Nanoseconds on a scale that begins somewhere near 1970, and never goes back."""
        return self.now().used

    def now(self) -> Moment:
        """This moment, for what is stamped with it."""
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
