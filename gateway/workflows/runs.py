"""The runs that go on in this gateway: begun, joined, resumed, cancelled.

A run's record says that it is running as long as it has not ended. Where no gateway runs it, it was interrupted. Two
gateways that resume the same run write its record in turn, and the one whose version is behind stops.
"""

import asyncio
import hashlib
import logging
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

import grpc

from agentmem import errors
from agentmem.logs import event
from agentmem.shielding import run_shielded
from agentmem.v1 import workflow_pb2
from agentmem.validation import AgentKey
from gateway.edge import callers
from gateway.edge.callers import Authenticator, Caller
from gateway.metrics import GatewayMetrics
from gateway.workflows.definition.parser import load
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.records import ENDED, Records, State, StoredRun, interrupted
from gateway.workflows.run import Run, agent_keys, finished
from gateway.workflows.worker import Worker

log = logging.getLogger(__name__)

_PATIENCE: Final = 300.0
"""Seconds that a run waits for a worker that is away, or for room; then it has failed, and can be resumed."""
_SLOTS: Final = 32
"""Tasks of all runs that the worker has at the same time, half of what it takes by default."""

_Events = AsyncGenerator[Event, None]
_Key = tuple[str, str]


class Runs:
    """Event loop only. At most `most` runs of a namespace go on at once."""

    def __init__(
        self,
        records: Records,
        worker: grpc.aio.Channel,
        authenticator: Authenticator,
        metrics: GatewayMetrics,
        most: int,
    ) -> None:
        self._records = records
        self._worker = Worker(worker, _PATIENCE)
        self._authenticator = authenticator
        self._metrics = metrics
        self._most = most
        self._slots = asyncio.Semaphore(_SLOTS)
        self._live: dict[_Key, Run] = {}
        self._beginning: Counter[str] = Counter()
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._closed = False

    async def begin(
        self, who: Caller, request_id: str, definition_yaml: str, variables: Mapping[str, str], after: int
    ) -> _Events:
        """Begin a run, or join or resume the one of this request; return its events behind the sequence `after`.

        Raise AgentmemError, for the mistakes of a definition too, before anything has begun.
        """
        definition = await asyncio.to_thread(load, definition_yaml, variables)
        key = who.namespace, _workflow_id(who.namespace, request_id or uuid.uuid4().hex)
        async with self._lock(key):
            if (known := await self._same(key, definition_yaml, variables)) is not None:
                return self._join(who, definition, known, after)
            with self._reserved(who.namespace):
                run = StoredRun(await self._new(key, definition), definition_yaml, dict(variables))
                try:
                    return await run_shielded(self._create(who, definition, run, after))
                except errors.AlreadyExists:  # another gateway was asked at the same time, and has it
                    if await self._same(key, definition_yaml, variables) is None:
                        raise
                    return self._records.follow(*key, after)

    async def resume(self, who: Caller, workflow_id: str, after: int) -> _Events:
        """Join a run, or go on with one that is interrupted or failed; return its events. Raise AgentmemError."""
        key = who.namespace, workflow_id
        async with self._lock(key):
            run = await self._found(key)
            if key in self._live or run.workflow.state in ENDED:
                return self._join(who, None, run, after)
            definition = await asyncio.to_thread(load, run.definition_yaml, run.variables)
            return self._join(who, definition, run, after)

    async def get(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """Return a run as it is now. Raise NotFound."""
        live = self._live.get((namespace, workflow_id))
        workflow = live.workflow if live else await self._records.workflow(namespace, workflow_id)
        if workflow is None:
            raise errors.NotFound("workflow", workflow_id)
        return self._now(workflow)

    async def page(self, namespace: str, size: int, token: str) -> tuple[list[workflow_pb2.Workflow], str]:
        """Return runs of a namespace without their agents, the newest first, and the next page's token."""
        stored, following = await self._records.page(namespace, size, token)
        runs = [self._now(workflow) for workflow in stored]
        for run in runs:
            run.ClearField("agents")
        return runs, following

    async def cancel(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """End a run; return it as it ended. Raise NotFound."""
        key = namespace, workflow_id
        async with self._lock(key):
            if (live := self._live.get(key)) is not None:
                if live.workflow.state not in ENDED:
                    live.cancelled = True
                    live.task.cancel()
                await asyncio.wait({live.task})
            run = await self._found(key)
            if run.workflow.state not in ENDED:
                run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
                last = finished(run.workflow)
                last.sequence = len(run.events) + 1
                last.time.GetCurrentTime()
                await self._records.append(run, [LoggedEvent(key="finished", event=last)])
                await self._forget_agents(run.workflow)
            return run.workflow

    async def delete(self, namespace: str, workflow_id: str) -> None:
        """Erase a run's record, and agents that were only its. Raise NotFound, FailedPrecondition while it runs."""
        key = namespace, workflow_id
        async with self._lock(key):
            if key in self._live:
                raise errors.FailedPrecondition("the workflow is running; cancel it first")
            try:
                run = await self._found(key)
            except errors.DataLoss:  # what is damaged can be deleted all the same
                version = await self._records.version(*key)
            else:
                version = run.version
                await self._forget_agents(run.workflow)
            await self._records.delete(*key, version)

    async def stop(self, seconds: float) -> None:
        """Interrupt all runs, within `seconds`; their records stay, and those who follow them learn to come again."""
        self._closed = True
        if tasks := {live.task for live in self._live.values()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=seconds)

    async def _new(self, key: _Key, definition: Definition) -> workflow_pb2.Workflow:
        models = await self._worker.models()
        agents = agent_keys(definition, *key, models[0] if models else "")
        _check_memories(agents, models)
        workflow = workflow_pb2.Workflow(
            namespace=key[0],
            workflow_id=key[1],
            name=definition.workflow,
            state=State.WORKFLOW_STATE_RUNNING,
            agents=agents,
        )
        workflow.create_time.GetCurrentTime()
        return workflow

    async def _create(self, who: Caller, definition: Definition, run: StoredRun, after: int) -> _Events:
        await self._records.create(run)
        return self._execute(who, definition, run).log.read(after)

    def _join(self, who: Caller, definition: Definition | None, run: StoredRun, after: int) -> _Events:
        if (live := self._live.get(run.key)) is not None:
            return live.log.read(after)
        if run.workflow.state in ENDED or definition is None:
            return _past(run, after)
        with self._reserved(who.namespace):
            run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_RUNNING, ""
            return self._execute(who, definition, run).log.read(after)

    def _execute(self, who: Caller, definition: Definition, stored: StoredRun) -> Run:
        if self._closed:
            raise errors.Unavailable("the gateway is shutting down")

        async def write(events: Sequence[LoggedEvent]) -> None:
            await self._records.append(stored, events)

        def check() -> None:
            if not self._authenticator.stands(who):
                raise errors.Unauthenticated("the key that began this run has been revoked, or has expired")

        run = Run(stored, definition, self._worker, write, check, self._slots)
        self._live[stored.key] = run
        self._metrics.workflows_running.inc()
        run.task = asyncio.create_task(_perform(who, run))
        run.task.add_done_callback(lambda _: self._ended(run))
        return run

    def _ended(self, run: Run) -> None:
        """Clean up after a run, also one whose task was cancelled before it began."""
        del self._live[run.stored.key]
        run.log.close(interrupted())
        state = run.workflow.state if run.over else State.WORKFLOW_STATE_INTERRUPTED
        self._metrics.workflows_running.dec()
        self._metrics.workflows_ended.labels(State.Name(state).removeprefix("WORKFLOW_STATE_").lower()).inc()

    async def _known(self, key: _Key) -> StoredRun | None:
        """Return a run, with its events unless it goes on here."""
        live = self._live.get(key)
        return live.stored if live is not None else await self._records.get(*key)

    async def _same(self, key: _Key, definition_yaml: str, variables: Mapping[str, str]) -> StoredRun | None:
        """Return `_known(key)`. Raise InvalidArgument where it was begun with another definition, or variables."""
        known = await self._known(key)
        if known is not None and (known.definition_yaml, known.variables) != (definition_yaml, dict(variables)):
            raise errors.InvalidArgument("request_id", "was used for another workflow; choose another")
        return known

    async def _found(self, key: _Key) -> StoredRun:
        if (known := await self._known(key)) is None:
            raise errors.NotFound("workflow", key[1])
        return known

    async def _forget_agents(self, workflow: workflow_pb2.Workflow) -> None:
        await self._worker.forget([agent.key for agent in workflow.agents if not agent.persists])

    def _now(self, stored: workflow_pb2.Workflow) -> workflow_pb2.Workflow:
        """Return a run as it is, given what its record says; a run that goes on here ends when its record says so."""
        found = workflow_pb2.Workflow()
        live = self._live.get((stored.namespace, stored.workflow_id))
        found.CopyFrom(live.workflow if live else stored)
        if live is not None and not live.over:
            found.state = State.WORKFLOW_STATE_RUNNING
        elif found.state == State.WORKFLOW_STATE_RUNNING:
            found.state = State.WORKFLOW_STATE_INTERRUPTED
        return found

    @contextmanager
    def _reserved(self, namespace: str) -> Iterator[None]:
        """Reserve a place for a run that is about to begin."""
        if self._closed:
            raise errors.Unavailable("the gateway is shutting down")
        running = sum(owner == namespace for owner, _ in self._live)
        if running + self._beginning[namespace] >= self._most:
            raise errors.ResourceExhausted(
                f"{self._most} workflows of this namespace are running; try again when one has ended", retry_after=10
            )
        self._beginning[namespace] += 1
        try:
            yield
        finally:
            self._beginning[namespace] -= 1

    def _lock(self, key: _Key) -> asyncio.Lock:
        """Return the lock with which one call at a time changes whether a run goes on."""
        return self._locks.setdefault(key, asyncio.Lock())


def _workflow_id(namespace: str, request_id: str) -> str:
    """Return the name of the run that a request is for: another namespace's is another run."""
    digest = hashlib.sha256(f"{namespace}\0{request_id}".encode()).hexdigest()
    return f"wf-{digest[:20]}"


def _check_memories(agents: Sequence[workflow_pb2.WorkflowAgent], models: Sequence[str]) -> None:
    """Refuse memories that cannot be a run's: of unknown models, of wrong names, of two agents in one."""
    owners: dict[AgentKey, str] = {}
    for agent in agents:
        key = AgentKey.from_proto(agent.key)
        if key.model_id not in models:
            raise errors.NotFound("model", key.model_id, f"registered are {', '.join(models) or 'none'}")
        if (other := owners.setdefault(key, agent.name)) != agent.name:
            raise errors.FailedPrecondition(
                f"{other} and {agent.name} would have one memory, {key.agent_id!r} on {key.model_id}; "
                "give one of them another id"
            )


async def _past(run: StoredRun, after: int) -> _Events:
    """Yield the events of a run that has ended."""
    for logged in run.events:
        if logged.event.sequence > after:
            yield logged.event


async def _perform(who: Caller, run: Run) -> None:
    # What is recorded may be read by all callers of the namespace.
    callers.serve(replace(who, admin=False))
    workflow_id = run.workflow.workflow_id
    event(log, "workflow began", workflow_id=workflow_id, turns=run.workflow.turns)
    try:
        await run.execute()
    except errors.AgentmemError as error:
        event(log, "workflow interrupted", logging.WARNING, workflow_id=workflow_id, reason=str(error))
