"""Responses to a reader that may stall or leave."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from agentmem import errors
from agentmem.process.logs import event as log_event
from gateway.api.exchange import Answer, SseEvent
from gateway.http.middleware import as_our_error, broke_off, whole

log = logging.getLogger(__name__)

_T = TypeVar("_T")

KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a stream begins, or has an event of its dialect that says nothing."""

_SSE_HEADERS: Final = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # proxies such as nginx pass events on at once
]
_COMMENT: Final = b": keep-alive\n\n"
"""Readers skip it, and proxies do not cut off the stream."""


@asynccontextmanager
async def begun(
    events: AsyncGenerator[_T, None], *, streamed: bool
) -> AsyncIterator[tuple["asyncio.Future[_T | None]", AsyncIterator[_T]]]:
    """Yield the first event and all of them, when the first is there. A stream begins without it after a while: clients
    count from the last thing they got, and a turn may wait for memory.
    """
    first = asyncio.ensure_future(anext(events, None))

    async def everything() -> AsyncIterator[_T]:
        if (event := await first) is not None:
            yield event
        async for event in events:
            yield event

    async with aclosing(events):
        try:
            await asyncio.wait({first}, timeout=KEEP_ALIVE_SECONDS if streamed else None)
            yield first, everything()
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)


class ReaderStalled(errors.ResourceExhausted):
    """It was logged, and counts among those that went away."""

    http_status = errors.Cancelled.http_status


class Stream:
    """One response: `start`, any number of `write` or `send`, then `end`.

    Raises ReaderStalled for a reader that takes nothing for `stall_limit` seconds; the server cuts off a response
    without end.
    """

    def __init__(self, send: Send, stall_limit: float) -> None:
        self._send = send
        self._stall_limit = stall_limit
        self._writing = asyncio.Lock()
        self._written = 0.0

    async def start(self, headers: Iterable[tuple[str, str]]) -> None:
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        async with self._writing:
            try:
                async with asyncio.timeout(self._stall_limit):
                    await self._send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                log_event(log, "stalled reader cut off", logging.WARNING, stall_limit=self._stall_limit)
                raise ReaderStalled(f"the reader took nothing for {self._stall_limit:g} s") from None
            self._written = time.monotonic()

    async def end(self) -> None:
        await self.write(b"", more=False)

    async def send(self, *events: SseEvent) -> None:
        """No events of another caller come between them."""
        if events:
            await self.write(b"".join(map(_encoded, events)))

    @asynccontextmanager
    async def kept_alive(self, alive: Callable[[], Iterable[SseEvent]]) -> AsyncIterator[None]:
        """After KEEP_ALIVE_SECONDS of silence, send what `alive` returns, or a comment."""
        self._written = time.monotonic()
        beating = asyncio.create_task(self._beat(KEEP_ALIVE_SECONDS, alive))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, every: float, alive: Callable[[], Iterable[SseEvent]]) -> None:
        while True:
            silent = time.monotonic() - self._written
            if silent < every:
                await asyncio.sleep(every - silent)
            elif events := list(alive()):
                await self.send(*events)
            else:
                await self.write(_COMMENT)


async def send_events(
    said: AsyncIterable[Iterable[SseEvent]],
    answer: Answer,
    scope: Scope,
    send: Send,
    stall_limit: float,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """`answer` reports a failure. Raises ReaderStalled."""
    stream = Stream(send, stall_limit)
    await stream.start([*_SSE_HEADERS, *headers.items()])
    async with stream.kept_alive(answer.alive):
        try:
            async for events in said:
                await stream.send(*events)
            whole(scope)
            ending = answer.closing()
        except ReaderStalled:
            raise
        except Exception as error:  # noqa: BLE001 - a stream that began can only report its failure
            failure = as_our_error(error)
            broke_off(scope, failure)
            ending = answer.failed(failure)
        await stream.send(*ending)
    await stream.end()


def _encoded(event: SseEvent) -> bytes:
    data, name = event
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    field = f"event: {name}\n" if name else ""
    return f"{field}data: {text}\n\n".encode()


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Cancel `work` and raise ClientDisconnect as soon as the client goes away.

    Call it after the body was read: `receive` has nothing but the disconnect to tell then.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
