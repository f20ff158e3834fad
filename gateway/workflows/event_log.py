"""A run's events: durable before they are sent to all who follow the run.

Several are stored in one write where they come faster than writes. Text as it streams is dropped for slow readers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from agentmem.errors import AgentmemError, FailedPrecondition
from agentmem.process.shielding import run_shielded
from agentmem.v1 import workflow_pb2, workflow_run_pb2
from agentmem.validation import MAX_RECORD_BYTES
from agentmem.words import cached_tokens

_MAX_UNREAD: Final = 1024
_HEADROOM: Final = 64 * 1024
"""Bytes of a record that are left to say how the run ended."""

Event = workflow_pb2.RunWorkflowResponse
LoggedEvent = workflow_run_pb2.LoggedEvent
Write = Callable[[Sequence[LoggedEvent]], Coroutine[Any, Any, None]]


class EventLog:
    """Event loop only. `used` are the bytes of the record beside `events`."""

    def __init__(self, events: Iterable[LoggedEvent], used: int, write: Write) -> None:
        self._write = write
        self._known = {logged.key: logged for logged in events}
        self._stored = [logged.event for logged in self._known.values()]
        self._totals = Totals(self._stored)
        self._bytes = used + sum(logged.ByteSize() for logged in self._known.values())
        self._pending: list[LoggedEvent | Event] = []
        self._readers: set[_Reader] = set()
        self._writing = asyncio.Lock()
        self._closed = False
        self._interruption: AgentmemError | None = None

    def find(self, key: str) -> LoggedEvent | None:
        return self._known.get(key)

    def stored_totals(self) -> workflow_pb2.WorkflowTotals:
        return Totals(self._stored).sums

    def append(self, key: str, event: Event) -> None:
        """Have the next `flush` store and send an event, unless its key has one."""
        if key not in self._known:
            event.sequence = len(self._known) + 1
            event.time.GetCurrentTime()
            self._totals.add(event)
            self._known[key] = logged = LoggedEvent(key=key, event=event)
            self._pending.append(logged)

    def publish(self, event: Event) -> None:
        """Send what is not stored, after all that was appended before."""
        event.sequence = len(self._known)
        event.time.GetCurrentTime()
        if self._pending:
            self._pending.append(event)
        else:
            self._send(event, stored=False)

    async def flush(self) -> None:
        """Raises what `write` raises, and FailedPrecondition if the record is full."""
        async with self._writing:
            await run_shielded(self._flush())  # the next write follows this one

    async def _flush(self) -> None:
        upto = len(self._pending)
        new = [one for one in self._pending if isinstance(one, LoggedEvent)]
        if new:
            size = self._bytes + sum(logged.ByteSize() for logged in new)
            ends = new[-1].event.HasField("finished")
            if size > MAX_RECORD_BYTES - (0 if ends else _HEADROOM):
                raise FailedPrecondition(
                    f"the run's record is full: it holds all that was said, at most {MAX_RECORD_BYTES >> 20} MiB; "
                    "make the workflow shorter, or several of it"
                )
            await self._write(new)
            self._bytes = size
        while upto < len(self._pending) and not isinstance(self._pending[upto], LoggedEvent):
            upto += 1
        ready, self._pending = self._pending[:upto], self._pending[upto:]
        for one in ready:
            if isinstance(one, LoggedEvent):
                self._stored.append(one.event)
                self._send(one.event, stored=True)
            else:
                self._send(one, stored=False)

    async def save(self) -> None:
        """Store how far the run is, without what could not be stored."""
        async with self._writing:
            self._pending = [one for one in self._pending if not isinstance(one, LoggedEvent)]
            await run_shielded(self._write(()))

    def close(self, interruption: AgentmemError | None = None) -> None:
        """End the readers' streams after the rest. Idempotent."""
        if not self._closed:
            self._closed, self._interruption = True, interruption
            for reader in self._readers:
                reader.wake.set()

    async def read(self, after: int) -> AsyncGenerator[Event, None]:
        """Yield events after a sequence number until the log is closed. Raises the interruption."""
        reader = _Reader()
        reader.events.extend(event for event in self._stored if event.sequence > after)
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

    def _send(self, event: Event, *, stored: bool) -> None:
        for reader in self._readers:
            if stored or event.HasField("finished") or len(reader.events) < _MAX_UNREAD:
                reader.events.append(event)
                reader.wake.set()


class Totals:
    """Sums over a run's turns and listenings. Pure."""

    def __init__(self, events: Iterable[workflow_pb2.RunWorkflowResponse] = ()) -> None:
        self.sums = workflow_pb2.WorkflowTotals()
        self._ledgers: dict[str, int] = {}
        for event in events:
            self.add(event)

    def add(self, event: workflow_pb2.RunWorkflowResponse) -> None:
        """Count an event, and write the sums into it."""
        kind = event.WhichOneof("event")
        if kind not in ("agent_spoke", "agent_listened"):
            return
        step: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened = getattr(event, kind)
        spoke = kind == "agent_spoke"
        noted = not spoke and bool(event.agent_listened.note)
        sums, prompt, reused = self.sums, step.usage.prompt_tokens, cached_tokens(step.usage)
        sums.turns += spoke
        sums.notes += noted
        sums.listenings += not (spoke or noted)
        sums.replayed += step.replayed
        sums.resent_tokens += prompt if spoke or noted else 0
        sums.prefilled_tokens += max(0, prompt - reused)
        sums.reused_tokens += reused
        if step.cache.miss_reason:
            sums.recomputed_tokens += max(0, min(self._ledgers.get(step.agent_id, 0), prompt) - reused)
        self._ledgers[step.agent_id] = prompt + step.usage.completion_tokens
        step.totals.CopyFrom(sums)


class _Reader:
    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.wake = asyncio.Event()
