"""Limits that hold before anybody knows whose a request is: its headers, its body's speed, too many connections."""

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentmem.errors import Unavailable
from gateway.http.connections import SURPLUS
from gateway.http.probes import OPEN
from gateway.http.rim import ErrorPage, http_error_page

_CLOSE: Final = {"connection": "close"}
_SLOWEST: Final = 16 * 1024
"""Bytes a second that a long body must have on the average."""


class RequestLimits:
    """ASGI middleware: refuses what is too large, and cuts off bodies that come too slowly.

    A body may keep its reader waiting for `body_timeout` seconds, and for one more with each 16 KiB that came.
    """

    def __init__(self, app: ASGIApp, max_header_bytes: int, body_timeout: float) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope.get("state", {}).get(SURPLUS) and scope["path"] not in OPEN:
            busy = ErrorPage(Unavailable("all connections of this gateway are taken; try again"), scope)
            busy.headers["connection"] = "close"
            await busy(scope, receive, send)
            return
        # The server's own limit is for headers that are incomplete when it looks; these may have come at once.
        size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._max_header_bytes:
            refused = HTTPException(431, f"the headers are larger than {self._max_header_bytes} bytes", _CLOSE)
            await (await http_error_page(Request(scope), refused))(scope, receive, send)
            return
        await self._app(scope, _timed(receive, self._body_timeout), send)


def _timed(receive: Receive, allowance: float) -> Receive:
    """`receive` that raises HTTPException 408 where the body comes too slowly. Only waiting for it counts."""
    clock = asyncio.get_running_loop().time
    left, complete = allowance, False

    async def timed() -> Message:
        nonlocal left, complete
        if complete:
            return await receive()  # what waits for the disconnect
        began = clock()
        try:
            async with asyncio.timeout(left) as waiting:
                message = await receive()
        except TimeoutError:
            if not waiting.expired():
                raise
            raise HTTPException(408, "the body came too slowly", _CLOSE) from None
        left += len(message.get("body", b"")) / _SLOWEST - (clock() - began)
        complete = not message.get("more_body", False)
        return message

    return timed
