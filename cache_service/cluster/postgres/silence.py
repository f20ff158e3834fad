"""A connection that ends where a server answers nothing, whose kernel still acknowledges: it is stopped, or its disk
hangs.

A long silence may be a lock, or a COMMIT that waits for the standby. So another connection asks whether the session is
at work; if not, or without an answer, this connection is closed.
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


class SilentServer(psycopg.OperationalError):
    """It has no SQLSTATE, as other errors of lost connections."""


class Watched(psycopg.Connection[tuple[Any, ...]]):
    _patience = math.inf
    _is_at_work: Callable[[], bool] = staticmethod(lambda: False)

    def watch(self, seconds: float, is_at_work: Callable[[], bool]) -> None:
        """Ask `is_at_work` after so many seconds of silence."""
        self._patience, self._is_at_work = seconds, is_at_work

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL, timeout: float | None = None) -> RV:
        """Raise SilentServer, with the connection closed; psycopg waits by this."""
        try:
            return super().wait(_unless_silent(gen, self._patience, self._is_at_work), interval, timeout)
        except SilentServer as error:
            event(log, "the ledger's database answers nothing", logging.WARNING, seconds=self._patience)
            self.close()
            raise error from None


def _unless_silent(gen: PQGen[RV], patience: float, is_at_work: Callable[[], bool]) -> Generator[Any, Any, RV]:
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
        elif doubted:  # an answer would have come while the question was asked
            raise SilentServer("the server answers nothing")
        elif time.monotonic() - heard >= patience:
            doubted = not is_at_work()
            heard = time.monotonic()
