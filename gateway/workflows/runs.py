"""Runs of workflows as callers have them. A gateway that is asked for another's run follows its record."""

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Final
from weakref import WeakValueDictionary

from agentmem import errors
from agentmem.process.logs import event
from agentmem.process.shielding import run_shielded
from agentmem.v1 import workflow_pb2
from gateway.edge.callers import Caller
from gateway.workflows.definition.parser import load
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.live import LiveRuns
from gateway.workflows.records import ENDED, RunKey, State, StoredRun, TakenOver, finished
from gateway.workflows.run import Run, new_workflow, workflow_id_of

log = logging.getLogger(__name__)

_RUNNING: Final = State.WORKFLOW_STATE_RUNNING
_TRIES: Final = 5
"""How often a record is read again because another gateway was faster."""
_PAUSE: Final = 0.02

_Events = AsyncGenerator[Event, None]


class Runs:
    """Event loop only. All methods raise AgentmemError."""

    def __init__(self, live: LiveRuns) -> None:
        self.live = live
        self._records, self._worker = live.records, live.worker
        self._locks: WeakValueDictionary[RunKey, asyncio.Lock] = WeakValueDictionary()

    async def begin(
        self, who: Caller, request_id: str, definition_yaml: str, variables: Mapping[str, str], after: int
    ) -> _Events:
        """Begin a run, or join or resume the one of this request; return its events after a sequence number."""
        definition = await asyncio.to_thread(load, definition_yaml, variables)
        key = who.namespace, workflow_id_of(who.namespace, request_id or uuid.uuid4().hex)
        async with self._lock(key):
            if (known := await self._same(key, definition_yaml, variables)) is not None:
                return await self._join(who, known, after, definition)
            with self.live.reserved(key):
                workflow = new_workflow(definition, key, await self._worker.models())
                run = StoredRun(workflow, definition_yaml, dict(variables), key_id=who.key_id)
                try:
                    return await run_shielded(self._create(who, definition, run, after))
                except errors.AlreadyExists:  # another gateway was asked at the same time, and has it
                    if (known := await self._same(key, definition_yaml, variables)) is None:
                        raise
            return await self._join(who, known, after, definition)

    async def resume(self, who: Caller, workflow_id: str, after: int) -> _Events:
        """Join a run, or go on with one that is interrupted or failed."""
        key = who.namespace, workflow_id
        async with self._lock(key):
            return await self._join(who, await self._found(key), after)

    async def take_over(self, namespace: str, workflow_id: str) -> bool:
        """Go on with a run that nobody attends to, if its caller's key stands; return whether it does."""
        key = namespace, workflow_id
        async with self._lock(key):
            head = None if key in self.live.by_key else await self._records.head(*key, payload=False)
            if head is None or head.workflow.state != _RUNNING or self._records.elsewhere(head):
                return False
            who = Caller(namespace, head.key_id)
            if not self.live.authenticator.stands(who):
                return False
            self.live.check_room(namespace)
            run = await self._records.get(*key)  # may be large
            if run is None or run.version != head.version:
                return False
            definition = await asyncio.to_thread(load, run.definition_yaml, run.variables)
            try:
                await self._go_on(who, definition, run)
            except TakenOver:
                return False
        self.live.metrics.taken_over.inc()
        event(log, "workflow taken over", workflow_id=workflow_id)
        return True

    async def watch(self, who: Caller, workflow_id: str, after: int) -> _Events:
        """Return a run's events while it goes on. It is never resumed."""
        run = await self._found((who.namespace, workflow_id))
        if (live := self.live.by_key.get(run.key)) is not None:
            return live.log.read(after)
        return self._records.follow(run, after) if self._records.elsewhere(run) else _past(run, after)

    async def get(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        key = namespace, workflow_id
        live = self.live.by_key.get(key)
        return self._now(live.stored if live else await self._head(key))

    async def page(self, namespace: str, size: int, token: str) -> tuple[list[workflow_pb2.Workflow], str]:
        stored, following = await self._records.page(namespace, size, token)
        runs = [self._now(run) for run in stored]
        for run in runs:
            run.ClearField("agents")
        return runs, following

    async def cancel(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """End a run; another gateway that has it finds that in the record."""
        key = namespace, workflow_id
        async with self._lock(key):
            for number in range(_TRIES):
                await self.live.cancel(key)
                run = await self._head(key)
                if run.workflow.state in ENDED:
                    return run.workflow
                try:
                    await self._end_cancelled(run)
                except TakenOver:  # it is busy: let its writes pass
                    await asyncio.sleep(random.uniform(1, 2) * _PAUSE * 2**number)
                    continue
                return run.workflow
        raise TakenOver

    async def delete(self, namespace: str, workflow_id: str) -> None:
        """Erase a run's record and its own agents. Raise FailedPrecondition while it runs."""
        key = namespace, workflow_id
        async with self._lock(key):
            if key in self.live.by_key:
                raise _is_running()
            try:
                run = await self._head(key)
            except errors.DataLoss:  # what is damaged can be deleted all the same
                version = 0
            else:
                if self._records.elsewhere(run):
                    raise _is_running()
                version = run.version
                await self._forget_agents(run.workflow)
            await self._records.delete(*key, version)

    async def _join(self, who: Caller, run: StoredRun, after: int, definition: Definition | None = None) -> _Events:
        """Go on from where a run is, or here. Under its lock."""
        for _ in range(_TRIES):
            if (live := self.live.by_key.get(run.key)) is not None:
                return live.log.read(after)
            if run.workflow.state in ENDED or self._records.elsewhere(run):
                return self._records.follow(run, after)
            if definition is None:
                definition = await asyncio.to_thread(load, run.definition_yaml, run.variables)
            try:
                return (await self._go_on(who, definition, run)).log.read(after)
            except TakenOver:
                run = await self._found(run.key)
        raise TakenOver

    async def _create(self, who: Caller, definition: Definition, run: StoredRun, after: int) -> _Events:
        await self._records.create(run)
        return self.live.begin(who, definition, run).log.read(after)

    async def _go_on(self, who: Caller, definition: Definition, run: StoredRun) -> Run:
        """Raise TakenOver where another gateway goes on with it."""

        async def begin() -> Run:
            await self._records.append(run, ())
            return self.live.begin(who, definition, run)

        with self.live.reserved(run.key):
            run.workflow.state, run.workflow.error = _RUNNING, ""
            run.key_id = who.key_id
            return await run_shielded(begin())

    async def _end_cancelled(self, run: StoredRun) -> None:
        """Raise TakenOver where another gateway was faster."""
        run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
        last = finished(run.workflow, run.stored_events + 1)
        await self._records.append(run, [LoggedEvent(key="finished", event=last)])
        await self._forget_agents(run.workflow)

    async def _known(self, key: RunKey) -> StoredRun | None:
        """Return a run, with its events unless it goes on here."""
        live = self.live.by_key.get(key)
        return live.stored if live is not None else await self._records.get(*key)

    async def _same(self, key: RunKey, definition_yaml: str, variables: Mapping[str, str]) -> StoredRun | None:
        """Raise InvalidArgument where it was begun with another definition, or variables."""
        known = await self._known(key)
        if known is not None and (known.definition_yaml, known.variables) != (definition_yaml, dict(variables)):
            raise errors.InvalidArgument("request_id", "was used for another workflow; choose another")
        return known

    async def _found(self, key: RunKey) -> StoredRun:
        if (known := await self._known(key)) is None:
            raise errors.NotFound("workflow", key[1])
        return known

    async def _head(self, key: RunKey) -> StoredRun:
        if (head := await self._records.head(*key)) is None:
            raise errors.NotFound("workflow", key[1])
        return head

    async def _forget_agents(self, workflow: workflow_pb2.Workflow) -> None:
        await self._worker.forget([agent.key for agent in workflow.agents if not agent.persists])

    def _now(self, stored: StoredRun) -> workflow_pb2.Workflow:
        """Return a run as it is; one that goes on here ends when its record says so."""
        found = workflow_pb2.Workflow()
        live = self.live.by_key.get(stored.key)
        found.CopyFrom(live.workflow if live else stored.workflow)
        if live is not None and not live.over:
            found.state = _RUNNING
        elif found.state == _RUNNING and not self._records.elsewhere(stored):
            found.state = State.WORKFLOW_STATE_INTERRUPTED
        return found

    def _lock(self, key: RunKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())


def _is_running() -> errors.FailedPrecondition:
    return errors.FailedPrecondition("the workflow is running; cancel it first")


async def _past(run: StoredRun, after: int) -> _Events:
    for logged in run.events:
        if logged.event.sequence > after:
            yield logged.event
