"""The runs that go on in this gateway: begun, joined, resumed, cancelled.

A run's record says that it is running as long as it has not ended. Where no gateway runs it, it was interrupted. Two
gateways that resume the same run write its record in turn, and the one whose version is behind stops.
"""

import asyncio
import hashlib
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

import grpc

from agentmem.errors import (
    AgentmemError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from agentmem.keys import AgentKey
from agentmem.logs import event
from agentmem.v1 import workflow_pb2, workflow_run_pb2
from gateway import callers
from gateway.callers import Authenticator, Caller
from gateway.metrics import GatewayMetrics
from gateway.workflows.definition.load import load
from gateway.workflows.definition.schema import Definition
from gateway.workflows.log import Event, EventLog
from gateway.workflows.records import Record, Records
from gateway.workflows.run import ENDED, Run, agent_keys
from gateway.workflows.turns import Turns

log = logging.getLogger(__name__)

State = workflow_pb2.WorkflowState
_PATIENCE: Final = 300.0
"""Seconds that a run waits for a worker that is away, or for room; then it has failed, and can be resumed."""


@dataclass
class _Live:
    run: Run
    version: int
    task: "asyncio.Task[None] | None" = None


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
        self._turns = Turns(worker, _PATIENCE)
        self._authenticator = authenticator
        self._metrics = metrics
        self._most = most
        self._live: dict[tuple[str, str], _Live] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._closed = False

    async def begin(
        self, who: Caller, request_id: str, definition_yaml: str, variables: Mapping[str, str], after: int
    ) -> AsyncGenerator[Event, None]:
        """Begin a run, or join or resume the one of this request; its events. Raises AgentmemError, the mistakes of a
        definition included, before anything has begun."""
        definition = await asyncio.to_thread(load, definition_yaml, variables)
        workflow_id = _id(who.namespace, request_id or uuid.uuid4().hex)
        given = workflow_run_pb2.WorkflowRun(definition_yaml=definition_yaml, variables=variables)
        async with self._only(who.namespace, workflow_id):
            if (known := await self._known(who.namespace, workflow_id)) is not None:
                if _told(known[0]) != _told(given):
                    raise InvalidArgument("request_id", "was used for another workflow; choose another")
                return await self._join(who, definition, *known, after)
            self._make_room(who.namespace)
            given.workflow.CopyFrom(await self._new(who.namespace, workflow_id, definition))
            await self._records.create(who.namespace, workflow_id, given.SerializeToString(), _summary(given.workflow))
            return self._execute(who, definition, given, 1).log.read(after)

    async def resume(self, who: Caller, workflow_id: str, after: int) -> AsyncGenerator[Event, None]:
        """Join a run, or go on with one that is interrupted or failed; its events. Raises AgentmemError."""
        async with self._only(who.namespace, workflow_id):
            known = await self._known(who.namespace, workflow_id)
            if known is None:
                raise NotFound("workflow", workflow_id)
            definition = await asyncio.to_thread(load, known[0].definition_yaml, dict(known[0].variables))
            return await self._join(who, definition, *known, after)

    async def get(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """A run as it is now. Raises NotFound."""
        known = await self._known(namespace, workflow_id)
        if known is None:
            raise NotFound("workflow", workflow_id)
        return self._as_it_is(known[0].workflow)

    async def page(self, namespace: str, size: int, token: str) -> tuple[list[workflow_pb2.Workflow], str]:
        """Runs of a namespace, the newest first, and the next page's token."""
        records, following = await self._records.page(namespace, size, token)
        runs = []
        for record in records:
            live = self._live.get((namespace, record.workflow_id))
            workflow = workflow_pb2.Workflow.FromString(_summary(live.run.workflow) if live else record.summary)
            runs.append(self._as_it_is(workflow))
        return runs, following

    async def cancel(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """End a run; as it ended. Raises NotFound."""
        async with self._only(namespace, workflow_id):
            if (live := self._live.get((namespace, workflow_id))) is not None and live.task is not None:
                live.run.cancelled = True
                live.task.cancel()
                await asyncio.wait({live.task})
            known = await self._known(namespace, workflow_id)
            if known is None:
                raise NotFound("workflow", workflow_id)
            run, version = known
            if run.workflow.state not in ENDED:
                await self._end_interrupted(run, version)
            return run.workflow

    async def delete(self, namespace: str, workflow_id: str) -> None:
        """Erase a run's record. Raises NotFound, and FailedPrecondition while it is running."""
        async with self._only(namespace, workflow_id):
            if (namespace, workflow_id) in self._live:
                raise FailedPrecondition("the workflow is running; cancel it first")
            record = await self._records.get(namespace, workflow_id)
            if record is None:
                raise NotFound("workflow", workflow_id)
            await self._records.delete(namespace, workflow_id, record.version)

    async def stop(self) -> None:
        """Interrupt all runs; their records stay as they are, and whoever follows them is told to come again."""
        self._closed = True
        tasks = {live.task for live in self._live.values() if live.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _new(self, namespace: str, workflow_id: str, definition: Definition) -> workflow_pb2.Workflow:
        models = await self._turns.models()
        agents = agent_keys(definition, namespace, workflow_id, models[0] if models else "")
        for agent in agents:
            AgentKey.from_proto(agent.key)
            if agent.key.model_id not in models:
                raise NotFound("model", agent.key.model_id, f"registered are {', '.join(models) or 'none'}")
        workflow = workflow_pb2.Workflow(
            workflow_id=workflow_id,
            namespace=namespace,
            name=definition.workflow,
            state=State.WORKFLOW_STATE_RUNNING,
            agents=agents,
        )
        workflow.create_time.GetCurrentTime()
        return workflow

    async def _join(
        self, who: Caller, definition: Definition, run: workflow_run_pb2.WorkflowRun, version: int, after: int
    ) -> AsyncGenerator[Event, None]:
        if (live := self._live.get((who.namespace, run.workflow.workflow_id))) is not None:
            return live.run.log.read(after)
        if run.workflow.state in ENDED:
            return _past(run).read(after)
        self._make_room(who.namespace)
        run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_RUNNING, ""
        return self._execute(who, definition, run, version).log.read(after)

    def _execute(self, who: Caller, definition: Definition, record: workflow_run_pb2.WorkflowRun, version: int) -> Run:
        key = (who.namespace, record.workflow.workflow_id)

        async def write() -> None:
            payload, summary = record.SerializeToString(), _summary(record.workflow)
            live.version = await self._records.put(*key, live.version, payload, summary)

        def check() -> None:
            if not self._authenticator.stands(who):
                raise Unauthenticated("the key that began this run has been revoked, or has expired")

        live = self._live[key] = _Live(Run(record, definition, self._turns, write, check), version)
        live.task = asyncio.create_task(self._run(who, key, live.run))
        return live.run

    async def _run(self, who: Caller, key: tuple[str, str], run: Run) -> None:
        # What is recorded may be read by all callers of the namespace.
        callers.serve(replace(who, admin=False))
        self._metrics.workflow_began()
        event(log, "workflow began", workflow_id=key[1], turns=run.workflow.turns)
        try:
            await run.execute()
        except AgentmemError as error:
            event(log, "workflow interrupted", logging.WARNING, workflow_id=key[1], reason=str(error))
        finally:
            del self._live[key]
            self._metrics.workflow_ended(_name(self._as_it_is(run.workflow).state))

    async def _known(self, namespace: str, workflow_id: str) -> tuple[workflow_run_pb2.WorkflowRun, int] | None:
        if (live := self._live.get((namespace, workflow_id))) is not None:
            return live.run.record, live.version
        record: Record | None = await self._records.get(namespace, workflow_id)
        if record is None:
            return None
        return workflow_run_pb2.WorkflowRun.FromString(record.payload), record.version

    def _as_it_is(self, workflow: workflow_pb2.Workflow) -> workflow_pb2.Workflow:
        found = workflow_pb2.Workflow()
        found.CopyFrom(workflow)
        live = (found.namespace, found.workflow_id) in self._live
        if found.state == State.WORKFLOW_STATE_RUNNING and not live:
            found.state = State.WORKFLOW_STATE_INTERRUPTED
        return found

    async def _end_interrupted(self, run: workflow_run_pb2.WorkflowRun, version: int) -> None:
        run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
        finished = Event(finished=workflow_pb2.WorkflowFinished(workflow=run.workflow))
        finished.sequence = len(run.events) + 1
        finished.time.GetCurrentTime()
        run.events.add(key="finished", event=finished)
        namespace, workflow_id = run.workflow.namespace, run.workflow.workflow_id
        await self._records.put(namespace, workflow_id, version, run.SerializeToString(), _summary(run.workflow))
        await self._turns.forget([agent.key for agent in run.workflow.agents if not agent.persists])

    def _make_room(self, namespace: str) -> None:
        if self._closed:
            raise Unavailable("the gateway is shutting down")
        if sum(owner == namespace for owner, _ in self._live) >= self._most:
            raise ResourceExhausted(
                f"{self._most} workflows of this namespace are running; try again when one has ended", retry_after=10
            )

    def _only(self, namespace: str, workflow_id: str) -> asyncio.Lock:
        """One call at a time changes whether a run goes on."""
        return self._locks.setdefault((namespace, workflow_id), asyncio.Lock())


def _past(run: workflow_run_pb2.WorkflowRun) -> EventLog:
    """What a run told that has ended."""

    async def write() -> None:
        raise AssertionError("it has ended")

    past = EventLog(run, write)
    past.close()
    return past


def _id(namespace: str, request_id: str) -> str:
    digest = hashlib.sha256(f"{namespace}\0{request_id}".encode()).hexdigest()
    return f"wf-{digest[:20]}"


def _told(run: workflow_run_pb2.WorkflowRun) -> tuple[str, dict[str, str]]:
    """What a run was begun with."""
    return run.definition_yaml, dict(run.variables)


def _summary(workflow: workflow_pb2.Workflow) -> bytes:
    """What a list tells of a run."""
    summary = workflow_pb2.Workflow()
    summary.CopyFrom(workflow)
    summary.ClearField("agents")
    summary.error = summary.error[:1000]
    return summary.SerializeToString()


def _name(state: "workflow_pb2.WorkflowState.ValueType") -> str:
    return State.Name(state).removeprefix("WORKFLOW_STATE_").lower()
