"""Runs as the store keeps them: read, written and erased over the channel to it, through a store's restart."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc

from agentmem import errors
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from gateway import retries, upstream

PATIENCE_SECONDS: Final = 60.0
"""How long a run waits for a store that does not answer, from the first call that failed."""

_TIMEOUT_SECONDS: Final = 20.0
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0


class Record(NamedTuple):
    """A run's record. `payload` is empty in pages."""

    workflow_id: str
    version: int
    payload: bytes
    summary: bytes


class Records:
    """The records of runs. Event loop.

    Where the store does not answer, or says that it cannot now, a call is made again for `patience` seconds, and raises
    Unavailable then. A call that was repeated may have been done before: it is told by what it wanted to have. So the
    payloads of two writers who may meet must differ. Other errors are the store's: InvalidArgument for what is too
    large, ResourceExhausted where there is no room, DataLoss for a damaged record.
    """

    def __init__(self, channel: grpc.aio.Channel, patience: float = PATIENCE_SECONDS) -> None:
        self._store: cache_store_pb2_grpc.CacheStoreServiceAsyncStub = cache_store_pb2_grpc.CacheStoreServiceStub(
            channel
        )
        self._patience = patience

    async def create(self, namespace: str, workflow_id: str, payload: bytes, summary: bytes) -> int:
        """Make a record; its version, 1. Raises AlreadyExists if there is another's."""
        try:
            return await self.put(namespace, workflow_id, 0, payload, summary)
        except errors.Aborted as error:
            raise errors.AlreadyExists(f"workflow {workflow_id!r} exists already; choose another id") from error

    async def put(self, namespace: str, workflow_id: str, version: int, payload: bytes, summary: bytes) -> int:
        """Replace a record that is in this version (0: none); its new version, fsynced. Raises Aborted if it is not."""
        record = pb.WorkflowRecord(
            namespace=namespace, workflow_id=workflow_id, version=version, payload=payload, summary=summary
        )
        call = _Call(self._store.PutWorkflowRecord, self._patience)
        try:
            answer: pb.PutWorkflowRecordResponse = await call.answer(pb.PutWorkflowRecordRequest(record=record))
        except errors.Aborted:
            wanted = Record(workflow_id, version + 1, payload, summary)
            if call.is_repeated and await self.get(namespace, workflow_id) == wanted:
                return wanted.version
            raise
        return answer.version

    async def get(self, namespace: str, workflow_id: str) -> Record | None:
        """A record; None if there is none."""
        call = _Call(self._store.GetWorkflowRecord, self._patience)
        try:
            answer: pb.GetWorkflowRecordResponse = await call.answer(
                pb.GetWorkflowRecordRequest(namespace=namespace, workflow_id=workflow_id)
            )
        except errors.NotFound:
            return None
        return _record(answer.record)

    async def page(self, namespace: str, size: int, token: str = "") -> tuple[list[Record], str]:
        """At most `size` (1 to 1000) records without payloads, the newest first, and the next page's token or ""."""
        call = _Call(self._store.ListWorkflowRecords, self._patience)
        answer: pb.ListWorkflowRecordsResponse = await call.answer(
            pb.ListWorkflowRecordsRequest(namespace=namespace, page_size=size, page_token=token)
        )
        return [_record(record) for record in answer.records], answer.next_page_token

    async def delete(self, namespace: str, workflow_id: str, version: int) -> None:
        """Erase a record that is in this version. Raises Aborted if it is in another, NotFound if there is none."""
        call = _Call(self._store.DeleteWorkflowRecord, self._patience)
        try:
            await call.answer(
                pb.DeleteWorkflowRecordRequest(namespace=namespace, workflow_id=workflow_id, version=version)
            )
        except errors.NotFound:
            if not call.is_repeated:
                raise


class _Call:
    """One call of the store, made again while the store is not there."""

    def __init__(self, rpc: Callable[..., Awaitable[Any]], patience: float) -> None:
        self._rpc = rpc
        self._patience = patience
        self.is_repeated = False
        """Whether the store may have done, before it answered, what it was asked for."""

    async def answer(self, request: Any) -> Any:
        """The answer. Raises AgentmemError; Unavailable when the patience is over."""
        backoff = _FIRST_WAIT

        def wait(failure: retries.Failure) -> float | None:
            nonlocal backoff
            told = _told(failure)
            if not isinstance(told, errors.Unavailable):
                return None
            self.is_repeated = True
            seconds = backoff if _is_silence(failure) else max(backoff, told.retry_after)
            backoff = min(2 * backoff, _LONGEST_WAIT)
            return seconds

        try:
            return await retries.patiently(lambda: self._rpc(request, timeout=_TIMEOUT_SECONDS), wait, self._patience)
        except grpc.aio.AioRpcError as error:
            raise _told(error) from error


def _told(failure: retries.Failure) -> errors.AgentmemError:
    """What a failed call is told as."""
    if not isinstance(failure, grpc.aio.AioRpcError):
        return failure
    return upstream.unreachable(upstream.STORE) if _is_silence(failure) else upstream.failure(failure, upstream.STORE)


def _is_silence(failure: retries.Failure) -> bool:
    return isinstance(failure, grpc.aio.AioRpcError) and errors.is_silence(failure)


def _record(message: pb.WorkflowRecord) -> Record:
    return Record(message.workflow_id, message.version, message.payload, message.summary)
