"""The runs that go on in this gateway: begun, joined, resumed, cancelled.

A run's record says that it is running as long as it has not ended. Where no gateway runs it, it was interrupted. Two
gateways that resume the same run write its record in turn, and the one whose version is behind stops.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

import grpc

from agentmem.errors import (
    AgentmemError,
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from agentmem.logs import event
from agentmem.shielding import to_its_end
from agentmem.v1 import workflow_pb2, workflow_run_pb2
from gateway import callers
from gateway.callers import Authenticator, Caller
from gateway.metrics import GatewayMetrics
from gateway.workflows import states
from gateway.workflows.definition.load import load
from gateway.workflows.definition.schema import Definition
from gateway.workflows.following import follow
from gateway.workflows.log import Event, EventLog
from gateway.workflows.records import Records
from gateway.workflows.run import ENDED, Run, agent_keys, interrupted
from gateway.workflows.states import State
from gateway.workflows.turns import Turns

log = logging.getLogger(__name__)

_PATIENCE: Final = 300.0
"""Seconds that a run waits for a worker that is away, or for room; then it has failed, and can be resumed."""
_AT_ONCE: Final = 32
"""Works of all runs that the worker has at the same time, half of what it takes by default."""

_Events = AsyncGenerator[Event, None]
_Key = tuple[str, str]


@dataclass
class _Live:
    run: Run
    version: int
    task: "asyncio.Task[None]"


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
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._live: dict[_Key, _Live] = {}
        self._beginning: Counter[str] = Counter()
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._closed = False

    async def begin(
        self, who: Caller, request_id: str, definition_yaml: str, variables: Mapping[str, str], after: int
    ) -> _Events:
        """Begin a run, or join or resume the one of this request; its events. Raises AgentmemError, the mistakes of a
        definition included, before anything has begun."""
        definition = await asyncio.to_thread(load, definition_yaml, variables)
        key = who.namespace, states.workflow_id(who.namespace, request_id or uuid.uuid4().hex)
        given = workflow_run_pb2.WorkflowRun(definition_yaml=definition_yaml, variables=variables)
        async with self._only(key):
            if (known := await self._same(key, given)) is not None:
                return self._join(who, definition, *known, after)
            with self._reserved(who.namespace):
                given.workflow.CopyFrom(await self._new(key, definition))
                try:
                    return await to_its_end(self._create(who, key, definition, given, after))
                except AlreadyExists:  # another gateway was asked at the same time, and has it
                    if await self._same(key, given) is None:
                        raise
                    return follow(self._records, *key, after)

    async def resume(self, who: Caller, workflow_id: str, after: int) -> _Events:
        """Join a run, or go on with one that is interrupted or failed; its events. Raises AgentmemError."""
        key = who.namespace, workflow_id
        async with self._only(key):
            run, version = await self._found(key)
            if key in self._live or run.workflow.state in ENDED:
                return self._join(who, None, run, version, after)
            definition = await asyncio.to_thread(load, run.definition_yaml, dict(run.variables))
            return self._join(who, definition, run, version, after)

    async def get(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """A run as it is now. Raises NotFound."""
        run, _ = await self._found((namespace, workflow_id))
        return self._as_it_is(run.workflow)

    async def page(self, namespace: str, size: int, token: str) -> tuple[list[workflow_pb2.Workflow], str]:
        """Runs of a namespace, the newest first, and the next page's token."""
        records, following = await self._records.page(namespace, size, token)
        runs = []
        for record in records:
            live = self._live.get((namespace, record.workflow_id))
            summary = states.summary(live.run.workflow) if live else record.summary
            runs.append(self._as_it_is(workflow_pb2.Workflow.FromString(summary)))
        return runs, following

    async def cancel(self, namespace: str, workflow_id: str) -> workflow_pb2.Workflow:
        """End a run; as it ended. Raises NotFound."""
        key = namespace, workflow_id
        async with self._only(key):
            if (live := self._live.get(key)) is not None:
                if live.run.workflow.state not in ENDED:
                    live.run.cancelled = True
                    live.task.cancel()
                await asyncio.wait({live.task})
            run, version = await self._found(key)
            if run.workflow.state not in ENDED:
                states.end(run)
                await self._records.put(*key, version, run.SerializeToString(), states.summary(run.workflow))
                await self._forget_agents(run.workflow)
            return run.workflow

    async def delete(self, namespace: str, workflow_id: str) -> None:
        """Erase a run's record, and agents that were only its. Raises NotFound, FailedPrecondition while it runs."""
        key = namespace, workflow_id
        async with self._only(key):
            if key in self._live:
                raise FailedPrecondition("the workflow is running; cancel it first")
            try:
                run, version = await self._found(key)
            except DataLoss:  # what is damaged can be deleted all the same
                version = await self._version(key)
            else:
                await self._forget_agents(run.workflow)
            await self._records.delete(*key, version)

    async def stop(self, seconds: float) -> None:
        """Interrupt all runs, at most so long; their records stay, and whoever follows them is told to come again."""
        self._closed = True
        if tasks := {live.task for live in self._live.values()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=seconds)

    async def _new(self, key: _Key, definition: Definition) -> workflow_pb2.Workflow:
        models = await self._turns.models()
        agents = agent_keys(definition, *key, models[0] if models else "")
        states.check(agents, models)
        return states.new(key, definition.workflow, agents)

    async def _create(
        self, who: Caller, key: _Key, definition: Definition, run: workflow_run_pb2.WorkflowRun, after: int
    ) -> _Events:
        version = await self._records.create(*key, run.SerializeToString(), states.summary(run.workflow))
        return self._execute(who, definition, run, version).log.read(after)

    def _join(
        self, who: Caller, definition: Definition | None, run: workflow_run_pb2.WorkflowRun, version: int, after: int
    ) -> _Events:
        if (live := self._live.get((who.namespace, run.workflow.workflow_id))) is not None:
            return live.run.log.read(after)
        if run.workflow.state in ENDED or definition is None:
            return _past(run).read(after)
        with self._reserved(who.namespace):
            run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_RUNNING, ""
            return self._execute(who, definition, run, version).log.read(after)

    def _execute(self, who: Caller, definition: Definition, run: workflow_run_pb2.WorkflowRun, version: int) -> Run:
        if self._closed:
            raise Unavailable("the gateway is shutting down")
        key = (who.namespace, run.workflow.workflow_id)

        async def write(payload: bytes) -> None:
            live.version = await self._records.put(*key, live.version, payload, states.summary(run.workflow))

        def check() -> None:
            if not self._authenticator.stands(who):
                raise Unauthenticated("the key that began this run has been revoked, or has expired")

        performed = Run(run, definition, self._turns, write, check, self._room)
        live = _Live(performed, version, asyncio.create_task(_perform(who, performed)))
        self._live[key] = live
        self._metrics.workflow_began()
        live.task.add_done_callback(lambda _: self._ended(key, performed))
        return performed

    def _ended(self, key: _Key, run: Run) -> None:
        """Also where the task was cancelled before it began."""
        del self._live[key]
        run.log.close(interrupted())
        state = run.workflow.state if run.over else State.WORKFLOW_STATE_INTERRUPTED
        self._metrics.workflow_ended(states.word(state))

    async def _known(self, key: _Key) -> tuple[workflow_run_pb2.WorkflowRun, int] | None:
        """A run with its events, unless it goes on here; and its record's version."""
        if (live := self._live.get(key)) is not None:
            return live.run.record, live.version
        record = await self._records.get(*key)
        return record and (workflow_run_pb2.WorkflowRun.FromString(record.payload), record.version)

    async def _same(
        self, key: _Key, given: workflow_run_pb2.WorkflowRun
    ) -> tuple[workflow_run_pb2.WorkflowRun, int] | None:
        """`_known`. Raises InvalidArgument where it is a run of something else than is given."""
        known = await self._known(key)
        if known is not None and states.given(known[0]) != states.given(given):
            raise InvalidArgument("request_id", "was used for another workflow; choose another")
        return known

    async def _found(self, key: _Key) -> tuple[workflow_run_pb2.WorkflowRun, int]:
        if (known := await self._known(key)) is None:
            raise NotFound("workflow", key[1])
        return known

    async def _version(self, key: _Key) -> int:
        """The version of a record that cannot be read."""
        token = ""
        while True:
            records, token = await self._records.page(key[0], 1000, token)
            for record in records:
                if record.workflow_id == key[1]:
                    return record.version
            if not token:
                raise NotFound("workflow", key[1])

    async def _forget_agents(self, workflow: workflow_pb2.Workflow) -> None:
        await self._turns.forget([agent.key for agent in workflow.agents if not agent.persists])

    def _as_it_is(self, workflow: workflow_pb2.Workflow) -> workflow_pb2.Workflow:
        live = self._live.get((workflow.namespace, workflow.workflow_id))
        return states.as_it_is(workflow, live=live is not None and not live.run.over)

    @contextmanager
    def _reserved(self, namespace: str) -> Iterator[None]:
        """A place for a run that is about to begin."""
        if self._closed:
            raise Unavailable("the gateway is shutting down")
        running = sum(owner == namespace for owner, _ in self._live)
        if running + self._beginning[namespace] >= self._most:
            raise ResourceExhausted(
                f"{self._most} workflows of this namespace are running; try again when one has ended", retry_after=10
            )
        self._beginning[namespace] += 1
        try:
            yield
        finally:
            self._beginning[namespace] -= 1

    def _only(self, key: _Key) -> asyncio.Lock:
        """One call at a time changes whether a run goes on."""
        return self._locks.setdefault(key, asyncio.Lock())


async def _perform(who: Caller, run: Run) -> None:
    # What is recorded may be read by all callers of the namespace.
    callers.serve(replace(who, admin=False))
    workflow_id = run.workflow.workflow_id
    event(log, "workflow began", workflow_id=workflow_id, turns=run.workflow.turns)
    try:
        await run.execute()
    except AgentmemError as error:
        event(log, "workflow interrupted", logging.WARNING, workflow_id=workflow_id, reason=str(error))


def _past(run: workflow_run_pb2.WorkflowRun) -> EventLog:
    """What a run told that has ended."""

    async def write(_: bytes) -> None:
        raise AssertionError("it has ended")

    past = EventLog(run, write)
    past.close()
    return past
