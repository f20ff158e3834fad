"""Responses that are written as they come, to a reader that may stall or leave."""

import asyncio
import logging
from collections.abc import Iterable

from starlette.types import Send

from agentmem import errors
from agentmem.logs import event as log_event

log = logging.getLogger(__name__)


class StreamedResponse:
    """One response: `start`, any number of `write`, then `end`.

    A reader that takes nothing for `stall_limit` seconds gets no more: `write` raises ReaderStalled, and a response
    that never ends is cut off by the server.
    """

    def __init__(self, send: Send, stall_limit: float) -> None:
        self._send = send
        self._stall_limit = stall_limit

    async def start(self, headers: Iterable[tuple[str, str]]) -> None:
        """Send status 200 and the headers."""
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._body(data, more=True)

    async def end(self) -> None:
        """End the response."""
        await self._body(b"", more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._stall_limit):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            log_event(log, "stalled reader cut off", logging.WARNING, stall_limit=self._stall_limit)
            raise ReaderStalled(f"the reader took nothing for {self._stall_limit:g} s") from None


class ReaderStalled(errors.ResourceExhausted):
    """The reader of a stream takes nothing; the response is left without an end. It was logged.

    Such a reader is as good as gone, so HTTP counts it among those.
    """

    http_status = errors.Cancelled.http_status
