"""Tests whether ledgers can be written, for readiness, before turns fail."""

import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agentmem.errors import AgentmemError
from agentmem.sizes import binary_size
from cache_service.ledger.clock import Clock
from cache_service.ledger.ledgers import Failure

LEAST_FREE: Final = 4 << 20
"""A turn and its log may take more."""
PROBED_FREE: Final = 64 << 20
"""A user's quota is not seen otherwise."""
PROBE_SECONDS: Final = 5.0


class Writability:
    """`note` on the database's thread, `problem` on one event loop."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._clock = clock
        self._failure: Failure | None = None
        self._problem = ""
        self._probed = 0.0
        self.free: Callable[[], int] = lambda: shutil.disk_usage(root).free

    def note(self, failure: Failure) -> None:
        if failure in (Failure.FULL, Failure.IO_ERROR):
            self._failure = failure

    async def problem(self) -> str:
        """Return why no turn could be kept now, or "". Writes a row now and then if a write has failed or the disk is
        nearly full.
        """
        try:
            free = self.free()
        except OSError as error:
            return f"the cache store cannot reach its disk ({error.strerror})"
        if free < LEAST_FREE:
            return f"the cache store's disk is full: {binary_size(free)} are free; delete something there"
        if self._failure is None and free >= PROBED_FREE:
            self._problem = ""
        elif time.monotonic() >= self._probed + PROBE_SECONDS:
            self._problem = await self._probe()
            self._probed = time.monotonic()
        return self._problem

    async def _probe(self) -> str:
        self._failure = None
        try:
            await self._clock.keep()
        except (AgentmemError, sqlite3.Error) as error:
            return f"the cache store cannot write: {error}"
        return ""
