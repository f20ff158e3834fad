"""A run's events: what is durable before it is told, and who is told.

What is logged goes to the record first, several events in one write where they come faster than writes; what is only
told now, text as it streams, is dropped for whoever reads too slowly, because the log has the whole of it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

from agentmem.errors import AgentmemError
from agentmem.shielding import to_its_end
from agentmem.v1 import workflow_pb2, workflow_run_pb2

_AHEAD: Final = 1024
"""Events that are only told now may wait for one reader."""

Event = workflow_pb2.RunWorkflowResponse


class EventLog:
    """The events of one run. Event loop only. `write` makes the record durable as it is when it is called."""

    def __init__(self, record: workflow_run_pb2.WorkflowRun, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._record = record
        self._write = write
        self._known = {logged.key: logged.event for logged in record.events}
        self._told = [logged.event for logged in record.events]
        self._waiting: list[tuple[str, Event]] = []
        self._readers: set[_Reader] = set()
        self._flushed = asyncio.Lock()
        self._closed = False
        self._interruption: AgentmemError | None = None

    def find(self, key: str) -> Event | None:
        """The event that was logged under `key`, in this execution of the run or in one before."""
        return self._known.get(key)

    def add(self, key: str, event: Event) -> None:
        """Log an event, unless one was logged under its key; it is told after the next `flush`."""
        if key in self._known:
            return
        self._known[key] = event
        event.sequence = len(self._record.events) + 1
        event.time.GetCurrentTime()
        self._record.events.add(key=key, event=event)
        self._waiting.append((key, event))

    def tell(self, event: Event) -> None:
        """Tell of something that is not logged, after all that was added before it."""
        event.sequence = len(self._record.events)
        event.time.GetCurrentTime()
        if self._waiting:
            self._waiting.append(("", event))
        else:
            self._release("", event)

    async def flush(self) -> None:
        """Have all that was added in the record, and told. Raises what writing raises."""
        async with self._flushed:
            if not self._waiting:
                return
            upto = len(self._waiting)
            if any(key for key, _ in self._waiting):
                await to_its_end(self._write())  # a write whose end nobody knows is one that the next would not follow
            ready, self._waiting = self._waiting[:upto], self._waiting[upto:]
            for key, event in ready:
                self._release(key, event)

    def close(self, interruption: AgentmemError | None = None) -> None:
        """Nothing more comes; who reads has the rest, and then the end, or what it was interrupted by."""
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

    def _release(self, key: str, event: Event) -> None:
        if key:
            self._told.append(event)
        for reader in self._readers:
            if key or len(reader.events) < _AHEAD:
                reader.events.append(event)
                reader.wake.set()


class _Reader:
    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.wake = asyncio.Event()
