from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from agentmem.client.answers import value_of
from agentmem.client.connection import Attempts, Connection, pages
from agentmem.client.inputs import UNSET, Timeout
from agentmem.client.records import time_of
from agentmem.errors import Unavailable
from agentmem.v1 import workflow_pb2

_UNLOGGED: Final = ("agent_speaking", "agent_delta", "finished")
"""Events with the number of the one before: growing text, and a failed run's end."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    agent: str
    model: str
    persists: bool


@dataclass(frozen=True, slots=True)
class Workflow:
    """One run. `state` is "running", "succeeded", "failed", "cancelled" or "interrupted"."""

    id: str
    name: str
    state: str
    phase: str
    turns: int
    error: str
    created: datetime | None
    updated: datetime | None
    members: tuple[Member, ...]
    raw: workflow_pb2.Workflow = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: workflow_pb2.Workflow) -> Workflow:
        members = tuple(Member(each.name, each.key.agent_id, each.key.model_id, each.persists) for each in raw.agents)
        created, updated = time_of(raw.create_time), time_of(raw.update_time)
        return value_of(cls, raw, id=raw.workflow_id, created=created, updated=updated, members=members)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The connection was lost and restored; growing text may be missing, which AgentSpoke has."""


RunEvent: TypeAlias = (
    workflow_pb2.WorkflowStarted
    | workflow_pb2.PhaseStarted
    | workflow_pb2.AgentSpeaking
    | workflow_pb2.AgentDelta
    | workflow_pb2.AgentSpoke
    | workflow_pb2.AgentListened
    | workflow_pb2.PhaseOutcome
    | workflow_pb2.WorkflowFinished
    | Interrupted
)
"""A message of workflow.proto, or Interrupted."""


class AsyncWorkflows:
    """Runs of workflows, which continue at the gateway without their caller. Raises AgentmemError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def run(
        self,
        definition: str,
        *,
        variables: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout: Timeout = UNSET,
    ) -> Workflow:
        """Run a workflow file's text to its end, successful or not.

        The same request_id joins the existing run. InvalidArgument names each mistake in the file.
        """
        stream = self.stream(definition, variables=variables, request_id=request_id, timeout=timeout)
        return await _ended(stream)

    def stream(
        self,
        definition: str,
        *,
        variables: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout: Timeout = UNSET,
    ) -> AsyncIterator[RunEvent]:
        """Run a workflow file's text, and yield each event once; the last is WorkflowFinished."""
        request = workflow_pb2.RunWorkflowRequest(
            definition_yaml=definition, variables=variables or {}, request_id=request_id or f"run-{uuid.uuid4().hex}"
        )
        return self._events(request, timeout)

    def follow(self, workflow_id: str, *, timeout: Timeout = UNSET) -> AsyncIterator[RunEvent]:
        """Join a run from its first event on; an interrupted one resumes after its last finished turn."""
        return self._events(workflow_pb2.RunWorkflowRequest(resume_workflow_id=workflow_id), timeout)

    async def _events(
        self, request: workflow_pb2.RunWorkflowRequest, timeout: Timeout
    ) -> AsyncGenerator[RunEvent, None]:
        async with aclosing(self.raw_events(request, timeout)) as raw:
            async for event in raw:
                if event is None:
                    yield Interrupted()
                elif kind := event.WhichOneof("event"):  # none: a newer gateway's
                    yield getattr(event, kind)

    async def raw_events(
        self, request: workflow_pb2.RunWorkflowRequest, timeout: Timeout = UNSET
    ) -> AsyncGenerator[workflow_pb2.RunWorkflowResponse | None, None]:
        """Yield a run's events, each once and in order, until it has ended; None after a lost connection.

        It reconnects within the client's patience since the last new event.
        """
        attempts = Attempts(self._connection, timeout)
        async with aclosing(attempts.stream(request, lambda event: event.HasField("finished"))) as events:
            async for event in events:
                if event is None:
                    if request.after_sequence:
                        yield None
                elif event.sequence > request.after_sequence:
                    request.after_sequence = event.sequence
                    attempts.renew()
                    yield event
                elif event.WhichOneof("event") in _UNLOGGED:
                    yield event

    async def get(self, workflow_id: str, *, timeout: Timeout = UNSET) -> Workflow:
        """Return a run with its agents."""
        request = workflow_pb2.GetWorkflowRequest(workflow_id=workflow_id)
        return Workflow.of((await self._connection.call(request, timeout)).workflow)

    def list(self, *, timeout: Timeout = UNSET) -> AsyncIterator[Workflow]:
        """Yield the runs, newest first, without their agents."""
        return pages(self._connection, workflow_pb2.ListWorkflowsRequest(), "workflows", Workflow.of, timeout)

    async def cancel(self, workflow_id: str, *, timeout: Timeout = UNSET) -> Workflow:
        """Cancel a run. Running turns are dropped; finished ones stay."""
        request = workflow_pb2.CancelWorkflowRequest(workflow_id=workflow_id)
        return Workflow.of((await self._connection.call(request, timeout)).workflow)

    async def delete(self, workflow_id: str, *, timeout: Timeout = UNSET) -> None:
        """Delete a run's record and texts. Its agents stay."""
        request = workflow_pb2.DeleteWorkflowRequest(workflow_id=workflow_id)
        await self._connection.erase(request, timeout)


async def _ended(events: AsyncIterator[RunEvent]) -> Workflow:
    finished: Workflow | None = None
    async for event in events:
        if isinstance(event, workflow_pb2.WorkflowFinished):
            finished = Workflow.of(event.workflow)
    if finished is None:
        raise Unavailable("the gateway ended the run without finishing it")
    return finished
