from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, cast

from agentmem.client.answers import Answer, Event, Growing, Memory, Recalled, Restarted, Text
from agentmem.client.connection import Attempts, Connection, Deadline
from agentmem.client.inputs import Timeout
from agentmem.errors import Aborted, Cancelled
from agentmem.v1 import inference_pb2

Prepare = Callable[[Deadline], Awaitable[inference_pb2.GenerateRequest]]


class AnswerChanged(Aborted):
    """The stream broke, and the answer was different when computed again. `answer` is what the agent remembers."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("the stream broke, and the answer came out differently; `answer` is the one that counts")
        self.answer = answer


class Replay:
    """Continues a stream that broke and began again. Pure."""

    def __init__(self) -> None:
        self._given = Growing()

    def grown(self, answer: Growing, *, complete: bool = False) -> Iterator[Event]:
        """Yield what is new in the answer so far; nothing while a new attempt has less than was yielded.

        If the new answer differs, or is `complete` and shorter, yield Restarted and then all of it.
        """
        if answer == self._given or (answer.begins(self._given) and not complete):
            return
        given = self._given
        if not given.begins(answer):
            given = Growing()
            yield Restarted()
        yield from answer.since(given)
        self._given = Growing(answer.reasoning, answer.text, list(answer.calls))


class AsyncStream:
    """An answer as it comes: iterate over its text, or over `events()`; then `answer` is the whole.

    The turn begins with the iteration. If that stops early, the turn continues at the server until `close`, as `async
    with` calls it; the agent then remembers nothing of it.
    """

    def __init__(self, connection: Connection, prepare: Prepare, timeout: Timeout) -> None:
        self._connection, self._prepare, self._timeout = connection, prepare, timeout
        self._source = self._run()
        self._attempts: Attempts | None = None
        self._answer: Answer | None = None
        self._memory: Memory | None = None
        self._closed = False

    @property
    def answer(self) -> Answer:
        """Raises RuntimeError before the stream has ended."""
        if self._answer is None:
            raise RuntimeError("the answer is not complete: iterate to the end, or call finish()")
        return self._answer

    @property
    def memory(self) -> Memory | None:
        """The reused memory; None before it is known."""
        return self._memory

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the text, none of it twice. Raises AnswerChanged, and AgentmemError."""
        async for event in self._source:
            if isinstance(event, Restarted):
                raise AnswerChanged(await self.finish())
            if isinstance(event, Text):
                yield event.text
        self._check_open()

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events: reuse, reasoning, text, tool calls, restarts."""
        async for event in self._source:
            yield event
        self._check_open()

    async def finish(self) -> Answer:
        """Read to the end, and return the answer."""
        async for _ in self._source:
            pass
        self._check_open()
        return self.answer

    def _check_open(self) -> None:
        """Raise Cancelled if another task closed the stream."""
        if self._closed and self._answer is None:
            raise Cancelled("the stream was closed")

    async def close(self) -> None:
        """Cancel the turn, unless it has ended. Readers get Cancelled."""
        self._closed = True
        if not cast(Any, self._source).ag_running:  # the stubs have none
            await self._source.aclose()
        elif self._attempts is not None:
            self._attempts.close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> AsyncGenerator[Event, None]:
        deadline, replay = self._connection.deadline(self._timeout), Replay()
        self._attempts = attempts = Attempts(self._connection, deadline)
        request = await self._prepare(deadline)
        answer, started = Growing(), inference_pb2.Started()
        async with aclosing(attempts.stream(request, lambda response: response.HasField("finished"))) as responses:
            async for response in responses:
                if response is None:
                    answer, started = Growing(), inference_pb2.Started()
                    continue
                match response.WhichOneof("event"):
                    case "started":
                        started = response.started
                        if self._memory is None:
                            self._memory = Memory.of(started)
                            yield Recalled(self._memory)
                    case "delta":
                        answer.add(response.delta)
                        for event in replay.grown(answer):
                            attempts.renew()
                            yield event
                    case "finished":
                        for event in replay.grown(answer, complete=True):
                            yield event
                        self._answer = answer.ended(started, response.finished, request.request_id)
