"""The runs that go on in this gateway."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from agentmem import errors
from agentmem.process.logs import event
from agentmem.words import short_name
from gateway.edge import callers
from gateway.edge.callers import Authenticator, Caller
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import LoggedEvent
from gateway.workflows.records import ENDED, Records, RunKey, State, StoredRun, interrupted
from gateway.workflows.run import Run
from gateway.workflows.worker import PatientWorker

log = logging.getLogger(__name__)

_SLOTS: Final = 32
"""Tasks of all runs that the worker has at the same time."""


class WorkflowMetrics:
    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.running = Gauge(
            "agentmem_gateway_workflows_running", "Workflow runs that go on in this gateway.", registry=registry
        )
        self.ended = Counter(
            "agentmem_gateway_workflows_ended_total",
            "Workflow runs that ended here, by how: succeeded, failed, cancelled, interrupted.",
            ["state"],
            registry=registry,
        )
        self.taken_over = Counter(
            "agentmem_gateway_workflows_taken_over_total",
            "Workflow runs whose gateway was gone, and that this gateway went on with unasked.",
            registry=registry,
        )
        for state in ("succeeded", "failed", "cancelled", "interrupted"):
            self.ended.labels(state)


@dataclass(eq=False)
class LiveRuns:
    """Event loop only. At most `most` runs of a namespace go on at once."""

    records: Records
    worker: PatientWorker
    authenticator: Authenticator
    metrics: WorkflowMetrics
    most: int
    by_key: dict[RunKey, Run] = field(default_factory=dict)
    _beginning: set[RunKey] = field(default_factory=set)
    _slots: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _SLOTS))
    _closed: bool = False

    @contextmanager
    def reserved(self, key: RunKey) -> Iterator[None]:
        if self._closed:
            raise errors.Unavailable("the gateway is shutting down")
        self.check_room(key[0])
        self._beginning.add(key)
        try:
            yield
        finally:
            self._beginning.discard(key)

    def check_room(self, namespace: str) -> None:
        if sum(owner == namespace for owner, _ in self._beginning.union(self.by_key)) >= self.most:
            raise errors.ResourceExhausted(
                f"{self.most} workflows of this namespace are running; try again when one has ended", retry_after=10
            )

    def begin(self, who: Caller, definition: Definition, stored: StoredRun) -> Run:
        """Raise Unavailable where the gateway is shutting down."""
        if self._closed:
            raise errors.Unavailable("the gateway is shutting down")

        async def write(events: Sequence[LoggedEvent]) -> None:
            await self.records.append(stored, events)

        def check() -> None:
            if not self.authenticator.stands(who):
                raise errors.Unauthenticated("the key that began this run has been revoked, or has expired")

        run = Run(stored, definition, self.worker, write, check, self._slots)
        self.by_key[stored.key] = run
        self.metrics.running.inc()
        run.task = asyncio.create_task(_perform(who, run))
        run.task.add_done_callback(lambda _: self._ended(run))
        return run

    def _ended(self, run: Run) -> None:
        """Clean up, also after a task that was cancelled before it began."""
        del self.by_key[run.stored.key]
        run.log.close(interrupted())
        state = run.workflow.state if run.over else State.WORKFLOW_STATE_INTERRUPTED
        self.metrics.running.dec()
        self.metrics.ended.labels(short_name(State.DESCRIPTOR, state)).inc()

    async def cancel(self, key: RunKey) -> None:
        if (live := self.by_key.get(key)) is not None:
            if live.workflow.state not in ENDED:
                live.cancelled = True
                live.task.cancel()
            await asyncio.wait({live.task})

    async def stop(self, seconds: float) -> None:
        """Interrupt all runs; who follows them learns to come again."""
        self._closed = True
        if live := list(self.by_key.values()):
            for run in live:
                run.task.cancel()
            await asyncio.wait({run.task for run in live}, timeout=seconds)


async def _perform(who: Caller, run: Run) -> None:
    # What is recorded may be read by all callers of the namespace.
    callers.serve(replace(who, admin=False))
    workflow_id = run.workflow.workflow_id
    event(log, "workflow began", workflow_id=workflow_id, turns=run.workflow.turns)
    try:
        await run.execute()
    except errors.AgentmemError as error:
        event(log, "workflow interrupted", logging.WARNING, workflow_id=workflow_id, reason=str(error))
