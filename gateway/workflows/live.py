"""The runs that go on in this gateway: how many may, how one begins and ends, and what their records say of it."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from agentmem import errors
from agentmem.process.logs import event
from agentmem.words import short_name
from gateway.edge import callers
from gateway.edge.callers import Authenticator, Caller
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import LoggedEvent
from gateway.workflows.metrics import WorkflowMetrics
from gateway.workflows.owners import Owner, Owners, RunKey, TakenOver
from gateway.workflows.records import ENDED, Records, State, StoredRun, interrupted
from gateway.workflows.run import Run
from gateway.workflows.worker import PatientWorker

log = logging.getLogger(__name__)

_SLOTS: Final = 32
"""Tasks of all runs that the worker has at the same time, half of what it takes by default."""

_LEAVE_SECONDS: Final = 5.0
"""What it may take at the end to write that nobody has the runs."""


class LiveRuns:
    """Event loop only. At most `most` runs of a namespace go on at once."""

    def __init__(
        self,
        records: Records,
        worker: PatientWorker,
        authenticator: Authenticator,
        metrics: WorkflowMetrics,
        most: int,
        owners: Owners,
    ) -> None:
        self._records = records
        self._worker = worker
        self._authenticator = authenticator
        self._metrics = metrics
        self._most = most
        self._owners = owners
        self._slots = asyncio.Semaphore(_SLOTS)
        self.by_key: dict[RunKey, Run] = {}
        """Those that go on, by namespace and workflow id; others only read it."""
        self._beginning: set[RunKey] = set()
        self._closed = False

    def goes_on(self, namespace: str, workflow_id: str) -> bool:
        """Return whether a run goes on here."""
        return (namespace, workflow_id) in self.by_key

    @contextmanager
    def reserved(self, key: RunKey) -> Iterator[None]:
        """Reserve a place for a run that is about to begin. One that has begun meanwhile is counted once."""
        if self._closed:
            raise errors.Unavailable("the gateway is shutting down")
        namespace = key[0]
        if sum(owner == namespace for owner, _ in self._beginning.union(self.by_key)) >= self._most:
            raise errors.ResourceExhausted(
                f"{self._most} workflows of this namespace are running; try again when one has ended", retry_after=10
            )
        self._beginning.add(key)
        try:
            yield
        finally:
            self._beginning.discard(key)

    async def begin(self, who: Caller, definition: Definition, stored: StoredRun) -> Run:
        """Work on a run whose record says that it is here, for this caller.

        Where this gateway stops meanwhile, leave it to others and raise Unavailable.
        """
        try:
            return self.execute(who, definition, stored)
        except errors.Unavailable:
            if self._owners.shared:
                stored.owner = _left(stored.owner)
                with suppress(errors.AgentmemError):
                    await self._records.append(stored, ())
            raise

    def execute(self, who: Caller, definition: Definition, stored: StoredRun) -> Run:
        """Begin to work on a run, for this caller. Raise Unavailable where the gateway is shutting down."""
        if self._closed:
            raise errors.Unavailable("the gateway is shutting down")

        async def write(events: Sequence[LoggedEvent]) -> None:
            try:
                await self._records.append(stored, events)
            except errors.Aborted as error:
                if self._owners.shared:
                    raise TakenOver from error
                raise

        def check() -> None:
            if not self._authenticator.stands(who):
                raise errors.Unauthenticated("the key that began this run has been revoked, or has expired")

        run = Run(stored, definition, self._worker, write, check, self._slots)
        self.by_key[stored.key] = run
        self._metrics.running.inc()
        run.task = asyncio.create_task(_perform(who, run))
        run.task.add_done_callback(lambda _: self._ended(run))
        return run

    def _ended(self, run: Run) -> None:
        """Clean up after a run, also one whose task was cancelled before it began."""
        del self.by_key[run.stored.key]
        run.log.close(interrupted())
        state = run.workflow.state if run.over else State.WORKFLOW_STATE_INTERRUPTED
        self._metrics.running.dec()
        self._metrics.ended.labels(short_name(State.DESCRIPTOR, state)).inc()

    async def cancel(self, key: RunKey) -> None:
        """Cancel a run that goes on here, and wait for its end."""
        if (live := self.by_key.get(key)) is not None:
            if live.workflow.state not in ENDED:
                live.cancelled = True
                live.task.cancel()
            await asyncio.wait({live.task})

    async def restate(self) -> None:
        """Write this gateway's epoch into the records of its runs, where it has changed since. Best effort."""
        for run in list(self.by_key.values()):
            before = run.stored.owner
            owner = self._owners.own(before.key_id)
            if owner != before:
                run.stored.owner = owner
                try:
                    await run.log.restate(partial(_is_running, run))
                except errors.AgentmemError:  # so that the next call tries again: a long turn writes nothing
                    run.stored.owner = before

    async def stop(self, seconds: float) -> None:
        """Interrupt all runs, within `seconds`; their records stay, and those who follow them learn to come again.

        In a cluster the records say that nobody has the runs, so that other gateways go on with them.
        """
        self._closed = True
        if not (live := list(self.by_key.values())):
            return
        for run in live:
            run.task.cancel()
        ended, _ = await asyncio.wait({run.task for run in live}, timeout=seconds)
        left = [run for run in live if run.task in ended and _is_running(run)]
        if self._owners.shared and left:
            # Not cancelled then: a write that the store has may still be done.
            await asyncio.wait({asyncio.create_task(_leave(run)) for run in left}, timeout=min(seconds, _LEAVE_SECONDS))


async def _leave(run: Run) -> None:
    """Say that no gateway has a run, behind what is being written of it. Best effort: it is found otherwise, too."""
    run.stored.owner = _left(run.stored.owner)
    with suppress(errors.AgentmemError):
        await run.log.restate(partial(_is_running, run))


def _left(owner: Owner) -> Owner:
    """Return that nobody has a run any more, and for whom it was: no node has the epoch 0."""
    return owner._replace(epoch=0)


def _is_running(run: Run) -> bool:
    return run.workflow.state == State.WORKFLOW_STATE_RUNNING


async def _perform(who: Caller, run: Run) -> None:
    # What is recorded may be read by all callers of the namespace.
    callers.serve(replace(who, admin=False))
    workflow_id = run.workflow.workflow_id
    event(log, "workflow began", workflow_id=workflow_id, turns=run.workflow.turns)
    try:
        await run.execute()
    except errors.AgentmemError as error:
        event(log, "workflow interrupted", logging.WARNING, workflow_id=workflow_id, reason=str(error))
