"""Runs of workflows as callers have them: begun, joined, resumed, taken over, cancelled.

A run's record says that it is running as long as it has not ended. Where no gateway runs it, it was interrupted. In a
cluster the record names the gateway that has the run, and who asks another one is answered by it; of two that go on
with a run nobody attends to, the one whose version is behind stops. Gateways of a single machine that resume the same
run write its record in turn, with the same end.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Final
from weakref import WeakValueDictionary

from agentmem import errors
from agentmem.process.logs import event
from agentmem.process.shielding import run_shielded
from agentmem.v1 import workflow_pb2
from gateway.edge.callers import Authenticator, Caller
from gateway.worker import Worker
from gateway.workflows.beginning import new_workflow, workflow_id_of
from gateway.workflows.definition.parser import load
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.live import LiveRuns
from gateway.workflows.metrics import WorkflowMetrics
from gateway.workflows.owners import Nodes, Owner, Owners, RunKey, TakenOver
from gateway.workflows.records import ENDED, Records, State, StoredRun
from gateway.workflows.run import Run, finished
from gateway.workflows.worker import PatientWorker

log = logging.getLogger(__name__)

_RUNNING: Final = State.WORKFLOW_STATE_RUNNING
_PATIENCE: Final = 300.0
"""Seconds that a run waits for a worker that is away, or for room; then it has failed, and can be resumed."""
_TRIES: Final = 3
"""How often it is found out anew who has a run, where another gateway was faster."""

_Events = AsyncGenerator[Event, None]


class Runs:
    """Event loop only. At most `most` runs of a namespace go on at once. `nodes` is the cluster, where there is one."""

    def __init__(
        self,
        records: Records,
        worker: Worker,
        authenticator: Authenticator,
        metrics: WorkflowMetrics,
        most: int,
        nodes: Nodes | None = None,
    ) -> None:
        self._records = records
        self._worker = PatientWorker(worker, _PATIENCE)
        self._authenticator = authenticator
        self._metrics = metrics
        self._owners = Owners(nodes)
        self._locks: WeakValueDictionary[RunKey, asyncio.Lock] = WeakValueDictionary()
        self.live = LiveRuns(records, self._worker, authenticator, metrics, most, self._owners)
        """Those that go on here."""

    async def begin(
        self, who: Caller, request_id: str, definition_yaml: str, variables: Mapping[str, str], after: int
    ) -> _Events:
        """Begin a run, or join or resume the one of this request; return its events behind the sequence `after`.

        Raise AgentmemError, for the mistakes of a definition too, before anything has begun.
        """
        definition = await asyncio.to_thread(load, definition_yaml, variables)
        key = who.namespace, workflow_id_of(who.namespace, request_id or uuid.uuid4().hex)
        async with self._lock(key):
            if (known := await self._same(key, definition_yaml, variables)) is not None:
                return await self._join(who, known, after, definition)
            with self.live.reserved(key):
                workflow = new_workflow(definition, key, await self._worker.models())
                run = StoredRun(workflow, definition_yaml, dict(variables), owner=self._owners.own(who.key_id))
                try:
                    return await run_shielded(self._create(who, definition, run, after))
                except errors.AlreadyExists:  # another gateway was asked at the same time, and has it
                    if (known := await self._same(key, definition_yaml, variables)) is None:
                        raise
                    if not self._owners.shared:
                        return self._records.follow(*key, after)
            return await self._join(who, known, after, definition)

    async def resume(self, who: Caller, workflow_id: str, after: int, *, at_owner: bool = False) -> _Events:
        """Join a run, or go on with one that is interrupted or failed; return its events. Raise AgentmemError.

        `at_owner`: another node asks, which believes that the run is here; what is not raises Unavailable.
        """
        key = who.namespace, workflow_id
        async with self._lock(key):
            return await self._join(who, await self._found(key), after, at_owner=at_owner)

    async def take_over(self, namespace: str, workflow_id: str) -> bool:
        """Go on with a run that nobody attends to, for the caller that it was for; return whether it does now.

        Only a run whose record names an owner is taken over unasked, and whose caller's key is known here and stands.
        Raise AgentmemError.
        """
        key = namespace, workflow_id
        async with self._lock(key):
            run = None if key in self.live.by_key else await self._records.head(*key)
            if run is None or run.workflow.state != _RUNNING or not run.owner.node:
                return False
            who, before = Caller(namespace, run.owner.key_id), run.owner
            if self._owners.elsewhere(run.workflow, run.owner) or not self._authenticator.stands(who):
                return False
            run = await self._records.get(*key)
            if run is None or run.workflow.state != _RUNNING or run.owner != before:
                return False
            definition = await asyncio.to_thread(load, run.definition_yaml, run.variables)
            try:
                await self._go_on(who, definition, run)
            except errors.Aborted:
                return False
        self._metrics.taken_over.inc()
        event(log, "workflow taken over", workflow_id=workflow_id, node=before.node, epoch=before.epoch)
        return True

    async def watch(self, who: Caller, workflow_id: str, after: int, *, at_owner: bool = False) -> _Events:
        """Return a run's events, and those to come while it goes on. It is never resumed. Raise NotFound.

        `at_owner`: another node asks, which believes that the run is here.
        """
        run = await self._found((who.namespace, workflow_id))
        if (live := self.live.by_key.get(run.key)) is not None:
            return live.log.read(after)
        if not at_owner and self._owners.elsewhere(run.workflow, run.owner):
            return self._owners.follow(run.owner, who.key_id, run.key, after, watch=True)
        return _past(run, after)

    async def get(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """Return a run as it is now. Raise NotFound."""
        live = self.live.by_key.get((namespace, workflow_id))
        stored = live.stored if live else await self._records.head(namespace, workflow_id)
        if stored is None:
            raise errors.NotFound("workflow", workflow_id)
        return self._now(stored.workflow, stored.owner)

    async def page(self, namespace: str, size: int, token: str) -> tuple[list[workflow_pb2.Workflow], str]:
        """Return runs of a namespace without their agents, the newest first, and the next page's token."""
        stored, following = await self._records.page(namespace, size, token)
        runs = [self._now(workflow, owner) for workflow, owner in stored]
        for run in runs:
            run.ClearField("agents")
        return runs, following

    async def cancel(self, who: Caller, workflow_id: str, *, at_owner: bool = False) -> workflow_pb2.Workflow:
        """End a run; return it as it ended. `at_owner` is as in `resume`. Raise NotFound."""
        key = who.namespace, workflow_id
        async with self._lock(key):
            for _ in range(_TRIES):
                await self.live.cancel(key)
                run = await self._found(key)
                if run.workflow.state in ENDED:
                    return run.workflow
                if self._owners.elsewhere(run.workflow, run.owner):
                    if at_owner:
                        break
                    return await self._owners.cancel(run.owner, who.key_id, key)
                try:
                    await self._end_cancelled(run)
                except errors.Aborted:  # another gateway goes on with it since
                    if not self._owners.shared:
                        raise
                else:
                    return run.workflow
        raise TakenOver

    async def delete(self, namespace: str, workflow_id: str) -> None:
        """Erase a run's record, and agents that were only its. Raise NotFound, FailedPrecondition while it runs."""
        key = namespace, workflow_id
        async with self._lock(key):
            if key in self.live.by_key:
                raise _is_running()
            try:
                run = await self._found(key)
            except errors.DataLoss:  # what is damaged can be deleted all the same
                version = await self._records.version(*key)
            else:
                if self._owners.elsewhere(run.workflow, run.owner):
                    raise _is_running()
                version = run.version
                await self._forget_agents(run.workflow)
            await self._records.delete(*key, version)

    async def _join(
        self, who: Caller, run: StoredRun, after: int, definition: Definition | None = None, *, at_owner: bool = False
    ) -> _Events:
        """Return a run's events, from where it goes on, or else going on with it here. Under its lock."""
        for _ in range(_TRIES):
            if (live := self.live.by_key.get(run.key)) is not None:
                return live.log.read(after)
            if run.workflow.state in ENDED:
                return _past(run, after)
            if self._owners.elsewhere(run.workflow, run.owner):
                if at_owner:
                    break
                return self._owners.follow(run.owner, who.key_id, run.key, after)
            if at_owner and not self._authenticator.stands(who):
                break  # the gateway that asks knows a key that this one does not know yet
            if definition is None:
                definition = await asyncio.to_thread(load, run.definition_yaml, run.variables)
            try:
                return (await self._go_on(who, definition, run)).log.read(after)
            except errors.Aborted:  # another gateway goes on with it since
                run = await self._found(run.key)
        raise TakenOver

    async def _create(self, who: Caller, definition: Definition, run: StoredRun, after: int) -> _Events:
        await self._records.create(run)
        return (await self.live.begin(who, definition, run)).log.read(after)

    async def _go_on(self, who: Caller, definition: Definition, run: StoredRun) -> Run:
        """Go on with a run here. In a cluster raise Aborted where another gateway does already."""

        async def begin() -> Run:
            if self._owners.shared:
                await self._records.append(run, ())
            return await self.live.begin(who, definition, run)

        with self.live.reserved(run.key):
            run.workflow.state, run.workflow.error = _RUNNING, ""
            run.owner = self._owners.own(who.key_id)
            return await run_shielded(begin())

    async def _end_cancelled(self, run: StoredRun) -> None:
        """Write that a run which goes on nowhere was cancelled. Raise Aborted where another gateway was faster."""
        run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
        last = finished(run.workflow)
        last.sequence = len(run.events) + 1
        last.time.GetCurrentTime()
        await self._records.append(run, [LoggedEvent(key="finished", event=last)])
        await self._forget_agents(run.workflow)

    async def _known(self, key: RunKey) -> StoredRun | None:
        """Return a run, with its events unless it goes on here."""
        live = self.live.by_key.get(key)
        return live.stored if live is not None else await self._records.get(*key)

    async def _same(self, key: RunKey, definition_yaml: str, variables: Mapping[str, str]) -> StoredRun | None:
        """Return `_known(key)`. Raise InvalidArgument where it was begun with another definition, or variables."""
        known = await self._known(key)
        if known is not None and (known.definition_yaml, known.variables) != (definition_yaml, dict(variables)):
            raise errors.InvalidArgument("request_id", "was used for another workflow; choose another")
        return known

    async def _found(self, key: RunKey) -> StoredRun:
        if (known := await self._known(key)) is None:
            raise errors.NotFound("workflow", key[1])
        return known

    async def _forget_agents(self, workflow: workflow_pb2.Workflow) -> None:
        await self._worker.forget([agent.key for agent in workflow.agents if not agent.persists])

    def _now(self, stored: workflow_pb2.Workflow, owner: Owner) -> workflow_pb2.Workflow:
        """Return a run as it is, given what its record says; a run that goes on here ends when its record says so."""
        found = workflow_pb2.Workflow()
        live = self.live.by_key.get((stored.namespace, stored.workflow_id))
        found.CopyFrom(live.workflow if live else stored)
        if live is not None and not live.over:
            found.state = _RUNNING
        elif found.state == _RUNNING and not self._owners.elsewhere(stored, owner):
            found.state = State.WORKFLOW_STATE_INTERRUPTED
        return found

    def _lock(self, key: RunKey) -> asyncio.Lock:
        """Return the lock with which one call at a time changes whether a run goes on."""
        return self._locks.setdefault(key, asyncio.Lock())


def _is_running() -> errors.FailedPrecondition:
    return errors.FailedPrecondition("the workflow is running; cancel it first")


async def _past(run: StoredRun, after: int) -> _Events:
    """Yield the events of a run that does not go on."""
    for logged in run.events:
        if logged.event.sequence > after:
            yield logged.event
