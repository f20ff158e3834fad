"""Server-sent events: an answer that is written as it comes, to a reader that may stall or leave."""

import asyncio
import json
import logging
from collections.abc import Mapping

from starlette.types import Send

from agentmem import errors
from agentmem.logs import event as log_event
from gateway.exchange import SseEvent

log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx pass events on at once
]


class EventStream:
    """One response of server-sent events: `start`, any number of `send`, then `end`.

    A reader that takes nothing for `stall_limit` seconds gets no more: `send` raises ResourceExhausted, and a response
    that never ends is cut off by the server.
    """

    def __init__(self, send: Send, stall_limit: float) -> None:
        self._send = send
        self._stall_limit = stall_limit

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the status and the headers, further ones included."""
        further = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *further]})

    async def send(self, event: SseEvent) -> None:
        """Send one event."""
        data, name = event
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        field = f"event: {name}\n" if name else ""
        await self._write(f"{field}data: {text}\n\n".encode(), more=True)

    async def end(self) -> None:
        """End the response."""
        await self._write(b"", more=False)

    async def _write(self, data: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._stall_limit):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            log_event(log, "stalled reader cut off", logging.WARNING, stall_limit=self._stall_limit)
            raise ReaderStalled(f"the reader took nothing for {self._stall_limit:g} s") from None


class ReaderStalled(errors.ResourceExhausted):
    """The reader of a stream takes nothing; the response is left without an end."""
