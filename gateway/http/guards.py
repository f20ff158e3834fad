"""What is asked of an HTTP request before its endpoint: its Host header, its size and speed, and who is calling.

A gateway without keys trusts all who reach its loopback address, and a browser reaches it for any web page whose own
name was made to lead there (DNS rebinding). The name that the browser asked for is in the Host header, and gives the
page away.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentmem.errors import Unavailable
from agentmem.process.sockets import asked_host, is_loopback
from gateway.edge import callers
from gateway.edge.admission import Admission
from gateway.edge.callers import Authenticator
from gateway.http.connections import SURPLUS
from gateway.http.middleware import PROBES, ErrorPage, is_keyless, log_fields

_REFUSAL: Final = (
    "without keys this gateway answers to localhost and loopback addresses only, and the request's Host header names "
    "another; ask for 127.0.0.1, or start the gateway with that name as --allowed-host, or with --keys"
)
_CLOSE: Final = {"connection": "close"}
BODY_SECONDS: Final = 30.0
"""Seconds that a body may keep its reader waiting, and one more for each 16 KiB that came."""
_SLOWEST: Final = 16 * 1024
"""Bytes a second that a long body must have on the average."""


class KnownHosts:
    """ASGI middleware: requests for other names than this machine's own, and those in `allowed`, are refused with 421.

    Any port will do. A request without a Host header is no browser's.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in PROBES:
            asked = Headers(scope=scope).get("host")
            if asked is not None and not is_loopback(name := asked_host(asked)) and name not in self._allowed:
                raise HTTPException(421, _REFUSAL)
        await self._app(scope, receive, send)


class RequestLimits:
    """ASGI middleware: refuses connections that are too many, and cuts off bodies that come too slowly."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["state"].get(SURPLUS):
            send = _closing(send)
            if scope["path"] not in PROBES:
                await ErrorPage(Unavailable("all connections of this gateway are taken; try again"), scope)(
                    scope, receive, send
                )
                return
        await self._app(scope, _timed(receive, BODY_SECONDS), send)


def _closing(send: Send) -> Send:
    """Return `send` that has the server close the connection after the response."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return closing


def _timed(receive: Receive, allowance: float) -> Receive:
    """Return `receive` that raises HTTPException 408 where the body comes too slowly. Only waiting for it counts."""
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


class Authentication:
    """ASGI middleware: only callers whom the authenticator lets in reach the endpoint.

    Raises Unauthenticated, Unavailable and ResourceExhausted, which become pages further out. The response of a caller
    who is revoked while it is sent is left without an end, and the server cuts the connection.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, admission: Admission) -> None:
        self._app = app
        self._authenticator = authenticator
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_keyless(scope["path"]):
            await self._app(scope, receive, send)
            return
        who = self._authenticator.authenticate(_credential(Headers(scope=scope)))
        callers.serve(who)
        log_fields(scope, namespace=who.namespace)
        async with self._admission.admitted(who):
            await self._app(scope, receive, send)


def _credential(headers: Headers) -> str | None:
    """Return what a caller shows: a bearer token, or the x-api-key of Anthropic's SDK."""
    token = callers.bearer_token(headers.get("authorization", ""))
    return headers.get("x-api-key") if token is None else token
