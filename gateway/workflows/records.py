"""Runs as the store keeps them: read, written and erased through a store's restart."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from agentmem import errors, retries
from agentmem.process.logs import event
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, workflow_pb2, workflow_run_pb2
from gateway import upstream
from gateway.workflows.event_log import Event, LoggedEvent

log = logging.getLogger(__name__)

State = workflow_pb2.WorkflowState
ENDED: Final = frozenset({State.WORKFLOW_STATE_SUCCEEDED, State.WORKFLOW_STATE_CANCELLED})
"""States that a run does not leave."""

PATIENCE_SECONDS: Final = 60.0
"""How long a run waits for a store that does not answer."""

_TIMEOUT_SECONDS: Final = 20.0
_ATTEND_SECONDS: Final = 3.0
_SILENCE_WAIT: Final = 0.25
_POLL_SECONDS: Final = 0.25
_MAX_ERROR: Final = 3000
_NO_EVENTS: Final = 2**63 - 1

RunKey = tuple[str, str]
"""Namespace and id."""


class TakenOver(errors.Unavailable):
    def __init__(self) -> None:
        super().__init__("the run goes on in another gateway; send the request again to follow it", 1.0)


@dataclass
class StoredRun:
    """`version` and `stored_events` are the record's; `holder` was the gateway that had it, "" for none that is
    there.
    """

    workflow: workflow_pb2.Workflow
    definition_yaml: str
    variables: dict[str, str]
    version: int = 0
    stored_events: int = 0
    events: list[LoggedEvent] = field(default_factory=list)
    holder: str = ""
    key_id: str = ""

    @property
    def key(self) -> RunKey:
        return self.workflow.namespace, self.workflow.workflow_id

    def payload(self) -> bytes:
        return workflow_run_pb2.WorkflowRun(
            workflow=self.workflow, definition_yaml=self.definition_yaml, variables=self.variables
        ).SerializeToString()


class Records:
    """Event loop only.

    Calls are made again for `patience` seconds. A repeated call may have been done before: it is recognised by what it
    wanted. Other errors are the store's: InvalidArgument for what is too large, ResourceExhausted, DataLoss.
    """

    def __init__(self, channel: grpc.aio.Channel, patience: float = PATIENCE_SECONDS) -> None:
        self._store: cache_store_pb2_grpc.CacheStoreServiceAsyncStub = cache_store_pb2_grpc.CacheStoreServiceStub(
            channel
        )
        self._patience = patience
        self._unreadable: set[RunKey] = set()
        self.holder = uuid.uuid4().hex
        """This gateway's name in the records of its runs."""

    def elsewhere(self, run: StoredRun) -> bool:
        """Return whether another gateway had a run when it was read."""
        return run.holder not in ("", self.holder)

    async def create(self, run: StoredRun) -> None:
        """Raise AlreadyExists."""
        try:
            await self._put(run, (), payload=run.payload())
        except TakenOver as error:
            raise errors.AlreadyExists(f"workflow {run.key[1]!r} exists already; choose another id") from error

    async def append(self, run: StoredRun, events: Sequence[LoggedEvent]) -> None:
        """Append events, and say how far the run is; fsynced. Raise TakenOver if another gateway has written since."""
        await self._put(run, [logged.SerializeToString() for logged in events])

    async def get(self, namespace: str, workflow_id: str, after: int = 0, *, payload: bool = True) -> StoredRun | None:
        """Return a run with its events after the first `after` ones; without payload it lacks agents and definition."""
        answer = await self._get(namespace, workflow_id, after, payload=payload)
        if answer is None:
            return None
        try:
            kept = workflow_run_pb2.WorkflowRun.FromString(answer.record.payload)
            run = _head(answer.record)
            run.events = [LoggedEvent.FromString(logged) for logged in answer.events]
        except DecodeError as error:
            raise errors.DataLoss(f"the record of workflow {workflow_id!r} is unreadable; delete it") from error
        run.workflow.agents.extend(kept.workflow.agents)
        run.definition_yaml, run.variables = kept.definition_yaml, dict(kept.variables)
        return run

    async def head(self, namespace: str, workflow_id: str, *, payload: bool = True) -> StoredRun | None:
        return await self.get(namespace, workflow_id, _NO_EVENTS, payload=payload)

    async def page(self, namespace: str, size: int, token: str = "") -> tuple[list[StoredRun], str]:
        """Return at most `size` (1 to 1000) runs, as `_head` does, newest first, and the next page's token, or "".

        Unreadable ones are left out.
        """
        request = pb.ListWorkflowRecordsRequest(namespace=namespace, page_size=size, page_token=token)
        call = _Call(self._store.ListWorkflowRecords, self._patience)
        answer: pb.ListWorkflowRecordsResponse = await call.answer(request)
        return list(self._readable(answer.records)), answer.next_page_token

    def _readable(self, records: Iterable[pb.WorkflowRecord]) -> Iterator[StoredRun]:
        """Log each unreadable one once: pages may be asked for again and again."""
        for record in records:
            try:
                yield _head(record)
            except DecodeError:
                if _key(record) not in self._unreadable:
                    self._unreadable.add(_key(record))
                    what = "unreadable workflow run is not listed; delete it"
                    event(log, what, logging.WARNING, workflow_id=record.workflow_id)

    async def attend(self, *, leaving: bool = False) -> tuple[set[RunKey], list[RunKey]]:
        """Say that this gateway attends to its runs. Return these, and those of nobody."""
        request = pb.AttendWorkflowRecordsRequest(holder=self.holder, leaving=leaving)
        answer: pb.AttendWorkflowRecordsResponse = await _Call(self._store.AttendWorkflowRecords, 0).answer(
            request, _ATTEND_SECONDS
        )
        return {_key(record) for record in answer.held}, [_key(record) for record in answer.unattended]

    async def delete(self, namespace: str, workflow_id: str, version: int) -> None:
        """Version 0 is any. Raise Aborted if it is in another, NotFound."""
        call = _Call(self._store.DeleteWorkflowRecord, self._patience)
        try:
            await call.answer(
                pb.DeleteWorkflowRecordRequest(namespace=namespace, workflow_id=workflow_id, version=version)
            )
        except errors.NotFound:
            if not call.is_repeated:
                raise

    async def follow(self, run: StoredRun, after: int) -> AsyncGenerator[Event, None]:
        """Yield what is stored of another gateway's run, read with its payload, after a sequence number, until it ends.

        Raise NotFound where the run is deleted, and Unavailable where nobody attends to it.
        """
        (namespace, workflow_id), agents = run.key, [*run.workflow.agents]
        while True:
            for logged in run.events:
                if logged.event.sequence > after:
                    after = logged.event.sequence
                    yield logged.event
            if run.workflow.state in ENDED:
                return
            if run.workflow.state == State.WORKFLOW_STATE_FAILED:
                del run.workflow.agents[:]
                run.workflow.agents.extend(agents)
                yield finished(run.workflow, after)
                return
            if not run.holder:
                raise interrupted()
            await asyncio.sleep(_POLL_SECONDS)
            if (now := await self.get(namespace, workflow_id, after, payload=False)) is None:
                raise errors.NotFound("workflow", workflow_id)
            run = now

    async def _put(self, run: StoredRun, events: Sequence[bytes], payload: bytes | None = None) -> None:
        namespace, workflow_id = run.key
        summary = _summary(run, self.holder)
        record = pb.WorkflowRecord(
            namespace=namespace, workflow_id=workflow_id, version=run.version, payload=payload, summary=summary
        )
        if run.workflow.state == State.WORKFLOW_STATE_RUNNING:
            record.holder = self.holder
        call = _Call(self._store.PutWorkflowRecord, self._patience)
        try:
            await call.answer(pb.PutWorkflowRecordRequest(record=record, events=events))
        except errors.Aborted as error:
            if not call.is_repeated:
                raise TakenOver from error
            # no other gateway writes the same summary
            found = await self._get(namespace, workflow_id, _NO_EVENTS, payload=False)
            if found is None or (found.record.version, found.record.summary) != (run.version + 1, summary):
                raise TakenOver from error
        run.version += 1
        run.stored_events += len(events)

    async def _get(
        self, namespace: str, workflow_id: str, after: int, *, payload: bool
    ) -> pb.GetWorkflowRecordResponse | None:
        request = pb.GetWorkflowRecordRequest(
            namespace=namespace, workflow_id=workflow_id, after_event=after, without_payload=not payload
        )
        try:
            answer: pb.GetWorkflowRecordResponse = await _Call(self._store.GetWorkflowRecord, self._patience).answer(
                request
            )
        except errors.NotFound:
            return None
        return answer


class _Call:
    def __init__(self, rpc: Callable[..., Awaitable[Any]], patience: float) -> None:
        self._rpc = rpc
        self._patience = patience
        self.is_repeated = False
        """The store may have done what it was asked for."""

    async def answer(self, request: Any, timeout: float = _TIMEOUT_SECONDS) -> Any:
        """Raise AgentmemError; Unavailable when the patience is over."""

        def wait(failure: retries.Failure) -> float | None:
            error = _error(failure)
            if not isinstance(error, errors.Unavailable):
                return None
            self.is_repeated = True
            return _SILENCE_WAIT if _is_silence(failure) else error.retry_after

        try:
            return await retries.retry(lambda: self._rpc(request, timeout=timeout), wait, self._patience)
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error


def interrupted() -> errors.Unavailable:
    return errors.Unavailable("the run was interrupted; send the request again, and it goes on")


def finished(workflow: workflow_pb2.Workflow, sequence: int = 0) -> Event:
    last = Event(finished=workflow_pb2.WorkflowFinished(workflow=workflow), sequence=sequence)
    last.time.GetCurrentTime()
    return last


def _summary(run: StoredRun, written_by: str) -> bytes:
    summary = workflow_run_pb2.RunSummary(workflow=run.workflow, key_id=run.key_id, written_by=written_by)
    summary.workflow.ClearField("agents")
    summary.workflow.error = summary.workflow.error[:_MAX_ERROR]
    return summary.SerializeToString()


def _head(record: pb.WorkflowRecord) -> StoredRun:
    """Return a run without agents, definition and events."""
    summary = workflow_run_pb2.RunSummary.FromString(record.summary)
    return StoredRun(
        summary.workflow, "", {}, record.version, record.event_count, holder=record.holder, key_id=summary.key_id
    )


def _key(record: pb.WorkflowRecord) -> RunKey:
    return record.namespace, record.workflow_id


def _error(failure: retries.Failure) -> errors.AgentmemError:
    if not isinstance(failure, grpc.aio.AioRpcError):
        return failure
    return upstream.unreachable(upstream.STORE) if _is_silence(failure) else upstream.failure(failure, upstream.STORE)


def _is_silence(failure: retries.Failure) -> bool:
    return isinstance(failure, grpc.aio.AioRpcError) and errors.is_silence(failure)
