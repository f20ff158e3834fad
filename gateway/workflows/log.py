"""A run's events: what is durable before it is told, and who is told.

What is logged goes to the record first, several events in one write where they come faster than writes; what is only
told now, text as it streams, is dropped for whoever reads too slowly, because the log has the whole of it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, NamedTuple

from agentmem.errors import AgentmemError, FailedPrecondition
from agentmem.limits import MAX_RECORD_BYTES
from agentmem.shielding import to_its_end
from agentmem.v1 import workflow_pb2, workflow_run_pb2

_AHEAD: Final = 1024
"""Events that are only told now may wait for one reader."""
_HEADROOM: Final = 64 * 1024
"""Bytes of a record that are left to say how the run ended."""

Event = workflow_pb2.RunWorkflowResponse
Write = Callable[[bytes], Coroutine[Any, Any, None]]


class _Waiting(NamedTuple):
    """An event to be told after the next write. `piece` is its part of the record; empty if it is not logged."""

    event: Event
    piece: bytes = b""


class EventLog:
    """The events of one run. Event loop only.

    `run` is all of its record but the events, which are taken out of it; it may change until `flush` or `save`, which
    write it with all events by `write`, and one write after the other.
    """

    def __init__(self, run: workflow_run_pb2.WorkflowRun, write: Write) -> None:
        self._run = run
        self._write = write
        self._known = {logged.key: logged for logged in map(_copy, run.events)}
        self._pieces = [_piece(logged) for logged in self._known.values()]
        self._told = [logged.event for logged in self._known.values()]
        run.ClearField("events")
        self._waiting: list[_Waiting] = []
        self._readers: set[_Reader] = set()
        self._writing = asyncio.Lock()
        self._closed = False
        self._interruption: AgentmemError | None = None

    def find(self, key: str) -> workflow_run_pb2.LoggedEvent | None:
        """What was logged under `key`, in this execution of the run or in one before."""
        return self._known.get(key)

    def written(self, kind: str) -> int:
        """How many events of a kind are in the record."""
        return sum(event.WhichOneof("event") == kind for event in self._told)

    def add(self, key: str, event: Event, digest: bytes = b"") -> None:
        """Log an event, unless one was logged under its key; it is told after the next `flush`.

        `digest` is of what it is the answer to.
        """
        if key in self._known:
            return
        event.sequence = len(self._known) + 1
        event.time.GetCurrentTime()
        self._known[key] = logged = workflow_run_pb2.LoggedEvent(key=key, event=event, digest=digest)
        self._waiting.append(_Waiting(event, _piece(logged)))

    def tell(self, event: Event) -> None:
        """Tell of something that is not logged, after all that was added before it."""
        event.sequence = len(self._known)
        event.time.GetCurrentTime()
        if self._waiting:
            self._waiting.append(_Waiting(event))
        else:
            self._release(_Waiting(event))

    async def flush(self) -> None:
        """Have all that was added in the record, and told. Raises what writing raises, FailedPrecondition if it is
        more than a record holds."""
        async with self._writing:
            upto = len(self._waiting)
            new = [waiting.piece for waiting in self._waiting if waiting.piece]
            if new:
                await to_its_end(self._write(self._payload(new)))  # the next write follows this one
                self._pieces += new
            ready, self._waiting = self._waiting[:upto], self._waiting[upto:]
            while self._waiting and not self._waiting[0].piece:
                ready.append(self._waiting.pop(0))
            for waiting in ready:
                self._release(waiting)

    async def save(self) -> None:
        """Have the run in its record as it is now, with what was told and without what never was."""
        async with self._writing:
            self._waiting = [waiting for waiting in self._waiting if not waiting.piece]
            await to_its_end(self._write(self._payload([], _HEADROOM)))

    def close(self, interruption: AgentmemError | None = None) -> None:
        """Nothing more comes; who reads has the rest, and then the end, or what it was interrupted by. Idempotent."""
        if self._closed:
            return
        self._closed, self._interruption = True, interruption
        for reader in self._readers:
            reader.wake.set()

    async def read(self, after: int) -> AsyncGenerator[Event, None]:
        """All logged after a sequence number, then what comes, until the log is closed. Raises what interrupted it."""
        reader = _Reader()
        reader.events.extend(event for event in self._told if event.sequence > after)
        self._readers.add(reader)
        try:
            while True:
                while reader.events:
                    yield reader.events.popleft()
                if self._closed:
                    if self._interruption is not None:
                        raise self._interruption
                    return
                reader.wake.clear()
                await reader.wake.wait()
        finally:
            self._readers.discard(reader)

    def _payload(self, new: list[bytes], headroom: int = 0) -> bytes:
        """The record: messages of protobuf that follow each other are one, so no event is encoded twice."""
        payload = b"".join((self._run.SerializeToString(), *self._pieces, *new))
        if len(payload) > MAX_RECORD_BYTES - _HEADROOM + headroom:
            raise FailedPrecondition(
                f"the run's record is full: it holds all that was said, at most {MAX_RECORD_BYTES >> 20} MiB; "
                "make the workflow shorter, or several of it"
            )
        return payload

    def _release(self, waiting: _Waiting) -> None:
        event = waiting.event
        if waiting.piece:
            self._told.append(event)
        for reader in self._readers:
            if waiting.piece or event.HasField("finished") or len(reader.events) < _AHEAD:
                reader.events.append(event)
                reader.wake.set()


class _Reader:
    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.wake = asyncio.Event()


def _copy(logged: workflow_run_pb2.LoggedEvent) -> workflow_run_pb2.LoggedEvent:
    copied = workflow_run_pb2.LoggedEvent()
    copied.CopyFrom(logged)
    return copied


def _piece(logged: workflow_run_pb2.LoggedEvent) -> bytes:
    return workflow_run_pb2.WorkflowRun(events=[logged]).SerializeToString()
