"""Server-sent events: an answer that is written as it comes, to a reader that may stall or leave."""

import asyncio
import json
import logging
from typing import Any

from starlette.types import Send

from agentmem import errors
from agentmem.logs import event

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

    async def start(self) -> None:
        """Send the headers."""
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})

    async def send(self, data: dict[str, Any] | str) -> None:
        """Send one event: an object as JSON, or text as it is."""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        await self._write(f"data: {text}\n\n".encode(), more=True)

    async def end(self) -> None:
        """End the response."""
        await self._write(b"", more=False)

    async def _write(self, data: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._stall_limit):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            event(log, "stalled reader cut off", logging.WARNING, stall_limit=self._stall_limit)
            raise ReaderStalled(f"the reader took nothing for {self._stall_limit:g} s") from None


class ReaderStalled(errors.ResourceExhausted):
    """The reader of a stream takes nothing; the response is left without an end."""
