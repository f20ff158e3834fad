"""Server-sent events: an answer that is written as it comes."""

import json
from collections.abc import Mapping

from starlette.types import Send

from gateway.exchange import SseEvent
from gateway.http.responses import StreamedResponse

_HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # proxies such as nginx pass events on at once
]


class EventStream:
    """One response of server-sent events: `start`, any number of `send`, then `end`; all as in StreamedResponse."""

    def __init__(self, send: Send, stall_limit: float) -> None:
        self._response = StreamedResponse(send, stall_limit)

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the status and the headers, further ones included."""
        await self._response.start([*_HEADERS, *headers.items()])

    async def send(self, event: SseEvent) -> None:
        """Send one event. Raises ReaderStalled."""
        data, name = event
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        field = f"event: {name}\n" if name else ""
        await self._response.write(f"{field}data: {text}\n\n".encode())

    async def end(self) -> None:
        """End the response. Raises ReaderStalled."""
        await self._response.end()
