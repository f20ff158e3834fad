"""A connection that does not wait for ever for a server whose kernel still acknowledges, but that answers nothing.

Such a server is one whose processes are stopped, whose disk hangs, or whose virtual machine is paused. TCP finds
nothing wrong with it, and its own limits of time do not pass there. A long silence may be right as well: a lock that
another holds, a COMMIT that waits for the standby. So who has heard nothing for a while asks on another connection
whether its session is at work. Where that is not answered, or the session is not there, this connection is closed: the
statement fails as one whose connection was lost, and of a COMMIT nobody knows.
"""

import logging
import math
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen

from agentmem.process.logs import event

log = logging.getLogger(__name__)

_INTERVAL = 0.1
"""Seconds after which a wait looks at the time."""


class SilentServer(psycopg.OperationalError):
    """The server answers nothing. It has no SQLSTATE, as other errors of lost connections."""


class Watched(psycopg.Connection[tuple[Any, ...]]):
    """One connection, on one thread. Nothing is watched before `watch`."""

    _patience = math.inf
    _is_at_work: Callable[[], bool] = staticmethod(lambda: False)

    def watch(self, seconds: float, is_at_work: Callable[[], bool]) -> None:
        """Ask `is_at_work` where nothing was heard for so many seconds, and again after as many more."""
        self._patience, self._is_at_work = seconds, is_at_work

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL, timeout: float | None = None) -> RV:
        """What psycopg waits by. Raises SilentServer, and then the connection is closed."""
        try:
            return super().wait(_unless_silent(gen, self._patience, self._is_at_work), interval, timeout)
        except SilentServer as error:
            event(log, "the ledger's database answers nothing", logging.WARNING, seconds=self._patience)
            self.close()
            raise error from None


def _unless_silent(gen: PQGen[RV], patience: float, is_at_work: Callable[[], bool]) -> Generator[Any, Any, RV]:
    """`gen`, until nothing is heard. Raises SilentServer."""
    heard, doubted, ready = time.monotonic(), False, None
    while True:
        try:
            wanted = gen.send(ready)  # type: ignore[arg-type]
        except StopIteration as ended:
            result: RV = ended.value
            return result
        ready = yield wanted
        if ready:
            heard, doubted = time.monotonic(), False
        elif doubted:  # had it ended while it was asked for, its answer would be here
            raise SilentServer("the server answers nothing")
        elif time.monotonic() - heard >= patience:
            doubted = not is_at_work()
            heard = time.monotonic()
