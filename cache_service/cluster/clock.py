"""The ledger's time on this node: what the last heartbeat has said, and what has passed here since."""

import threading
import time
from typing import Final

from cache_service.ledger.clock import BOOT_CLOCK, STEP, Moment

_NEVER: Final = Moment(0, 0)
_MOST: Final = 10 * 10**9
"""Nanoseconds that pass from one heartbeat to the next at most."""


class SharedClock:
    """`set` on one thread, all else on any.

    Agents are idle by a time that all nodes have in common (`nodes.beat`): it passes while any of them runs, and no
    step of a machine's clock counts, neither of a node nor of the server. Between two heartbeats it passes for seconds
    only: where the database is away for hours, nobody could use an agent meanwhile.

    A heartbeat that took longer than the last says an earlier time than this node has told already. What was told
    stands until it is past, so that an agent is never updated before it was created; only the shown time follows a
    server's clock that is set back.
    """

    def __init__(self) -> None:
        self._said = _NEVER, 0
        self._told = _NEVER
        self._telling = threading.Lock()

    def set(self, used: int, wall: int) -> None:
        """The ledger's time, and the server's clock, in nanoseconds, a moment ago."""
        self._said = Moment(wall, used), time.clock_gettime_ns(BOOT_CLOCK)

    def time(self) -> int:
        """Nanoseconds on a scale that begins somewhere near 1970, and never goes back."""
        return self.now().used

    def now(self) -> Moment:
        """This moment, for what is stamped with it."""
        (wall, used), at = self._said
        passed = time.clock_gettime_ns(BOOT_CLOCK) - at
        wall, used = wall + passed, used + min(passed, _MOST)
        with self._telling:
            if self._told.wall - STEP < wall:
                wall = max(wall, self._told.wall)
            self._told = Moment(wall, max(used, self._told.used))
            return self._told

    def advance(self) -> None:
        """Nothing: heartbeats do."""
