"""Server-sent events: an answer that is written as it comes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.types import Send

from gateway.exchange import SseEvent
from gateway.http.responses import StreamedResponse

_HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # proxies such as nginx pass events on at once
]


_COMMENT = b": keep-alive\n\n"
"""What readers skip, by the standard; proxies do not cut off a stream that says something."""


class EventStream:
    """One response of server-sent events: `start`, any number of `send`, then `end`; all as in StreamedResponse."""

    def __init__(self, send: Send, stall_limit: float) -> None:
        self._response = StreamedResponse(send, stall_limit)
        self._writing = asyncio.Lock()
        self._written = 0.0

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the status and the headers, further ones included."""
        await self._response.start([*_HEADERS, *headers.items()])

    async def send(self, event: SseEvent) -> None:
        """Send one event. Raises ReaderStalled."""
        data, name = event
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        field = f"event: {name}\n" if name else ""
        await self._write(f"{field}data: {text}\n\n".encode())

    @asynccontextmanager
    async def kept_alive(self, every: float) -> AsyncIterator[None]:
        """While the block runs, a comment is sent whenever nothing else was for `every` seconds."""
        self._written = time.monotonic()
        beating = asyncio.create_task(self._beat(every))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def end(self) -> None:
        """End the response. Raises ReaderStalled."""
        await self._response.end()

    async def _beat(self, every: float) -> None:
        while True:
            silent = time.monotonic() - self._written
            if silent >= every:
                await self._write(_COMMENT)
            else:
                await asyncio.sleep(every - silent)

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            await self._response.write(data)
            self._written = time.monotonic()
