"""Runs attended through the store, which hears once a second that this gateway is there.

A run is taken over by compare-and-set: the first gateway to write itself into the record has the run; the other's next
write is refused, and it stops.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from agentmem import errors
from agentmem.process.logs import event
from gateway.extension import Extension
from gateway.workflows.records import RunKey
from gateway.workflows.runs import Runs

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0
SURE_SECONDS: Final = 2.0
"""How long a run must be unattended: after a failover of the database all are for a moment."""
SPREAD_SECONDS: Final = 3.0
"""Gateways wait up to this longer, so that runs spread."""
AGAIN_SECONDS: Final = 15.0
"""After a first attempt; this doubles with each."""
LONGEST_SECONDS: Final = 300.0
_AT_ONCE: Final = 4


@dataclass
class _Lost:
    due: float
    wait: float = AGAIN_SECONDS
    warned: bool = False

    def put_off(self, now: float) -> None:
        self.due = now + self.wait
        self.wait = min(LONGEST_SECONDS, self.wait * 2)


class Attendance(Extension):
    """The runs that go on here, from the gateway's start to its end. `may_not` returns why none should be taken over
    here now, or "".
    """

    def __init__(self, runs: Runs, may_not: Callable[[], str]) -> None:
        self.runs = runs
        self._records = runs.live.records
        self._may_not = may_not
        self._lost: dict[RunKey, _Lost] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> Mapping[str, str]:
        due: asyncio.Queue[RunKey] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._watch(due))]
        self._tasks += [asyncio.create_task(self._take_over_each(due)) for _ in range(_AT_ONCE)]
        return {}

    def tasks(self) -> set[asyncio.Task[Any]]:
        return {*self._tasks}

    async def stop(self, grace: float) -> None:
        """Leave the runs to other gateways, or until they are asked for."""
        await self.runs.live.stop(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=1)  # a takeover may wait for the store
        with suppress(errors.AgentmemError):  # a silent gateway is gone soon, too
            await self._records.attend(leaving=True)

    async def look(self) -> list[RunKey]:
        """Stop the runs that others have by now; return those that are to be taken over."""
        before = list(self.runs.live.by_key.values())
        try:
            held, unattended = await self._records.attend()
        except errors.AgentmemError as error:
            log.debug("the store did not say which runs nobody attends to: %s", error)
            return []
        for run in before:
            if run.stored.key not in held:
                run.lose()
        now = time.monotonic()
        lost = [key for key in (*unattended, *held) if key not in self.runs.live.by_key]
        soon = now + SURE_SECONDS
        self._lost = {key: self._lost.get(key) or _Lost(soon + random.uniform(0, SPREAD_SECONDS)) for key in lost}
        due = [] if self._may_not() else [key for key in lost if self._lost[key].due <= now]
        for key in due:
            self._lost[key].put_off(now)
        return due

    async def _watch(self, due: asyncio.Queue[RunKey]) -> None:
        while True:
            for key in await self.look():
                due.put_nowait(key)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _take_over_each(self, due: asyncio.Queue[RunKey]) -> None:
        """This may wait for the store, and `_watch` must not."""
        while True:
            await self.take_over(await due.get())

    async def take_over(self, key: RunKey) -> None:
        """Raise nothing: one run must not end the gateway. Warn once a run."""
        try:
            await self.runs.take_over(*key)
        except errors.AgentmemError as error:
            lost = self._lost.get(key) or _Lost(0)
            level = logging.DEBUG if lost.warned else logging.WARNING
            event(log, "workflow not taken over", level, workflow_id=key[1], reason=error.message)
            lost.warned = True
        except Exception:
            incident = uuid.uuid4().hex[:12]
            log.exception("unexpected error in taking over workflow %s, incident %s", key[1], incident)
