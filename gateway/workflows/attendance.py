"""Runs attended through the store, which hears once a second that this gateway is there.

A run is taken over by compare-and-set: the first gateway to write itself into the record has the run; the other's next
write is refused, and it stops.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from agentmem import errors
from agentmem.process.logs import event
from gateway.workflows.records import Records, RunKey
from gateway.workflows.runs import Runs

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0
SURE_SECONDS: Final = 2.0
"""How long nobody must have attended to a run: after a failover of the database all are gone for a moment."""
SPREAD_SECONDS: Final = 3.0
"""Gateways wait up to this much longer, so that runs spread."""
AGAIN_SECONDS: Final = 15.0
_AT_ONCE: Final = 4


class Attendance:
    """Event loop only. `unready` returns why nothing new should begin here, or ""."""

    def __init__(self, runs: Runs, records: Records, unready: Callable[[], str]) -> None:
        self._runs = runs
        self._records = records
        self._unready = unready
        self._due: dict[RunKey, float] = {}
        self._not_before: dict[RunKey, float] = {}

    async def watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_SECONDS)

    async def look(self) -> None:
        """Stop the runs that others have by now, and take over those that are due. A failure is left to the next
        one.
        """
        before = list(self._runs.live.by_key.values())
        try:
            held, unattended = await self._records.attend()
        except errors.AgentmemError as error:
            log.debug("the store did not say which runs nobody attends to: %s", error)
            return
        for run in before:
            if run.stored.key not in held:
                run.lose()
        now = time.monotonic()
        lost = [key for key in (*unattended, *held) if key not in self._runs.live.by_key]
        self._due = {key: self._due.get(key, now + SURE_SECONDS + random.uniform(0, SPREAD_SECONDS)) for key in lost}
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        if self._unready():
            return
        due = [key for key in lost if self._due[key] <= now and key not in self._not_before]
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(self._take_over(key) for key in due[first : first + _AT_ONCE]))

    async def leave(self) -> None:
        """Best effort: a silent gateway is gone soon."""
        with suppress(errors.AgentmemError):
            await self._records.attend(leaving=True)

    async def _take_over(self, key: RunKey) -> None:
        self._not_before[key] = time.monotonic() + AGAIN_SECONDS
        try:
            await self._runs.take_over(*key)
        except errors.AgentmemError as error:
            event(log, "workflow not taken over", logging.WARNING, workflow_id=key[1], reason=error.message)
