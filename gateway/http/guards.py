"""A gateway without keys trusts all who reach its loopback address, and a browser reaches it for any web page whose own
name was made to lead there (DNS rebinding). The Host header has that name.
"""

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from agentmem.errors import Unavailable
from agentmem.process.sockets import asked_host, is_loopback
from gateway.edge import callers
from gateway.edge.admission import Admission
from gateway.edge.callers import Authenticator
from gateway.http.connections import SURPLUS
from gateway.http.middleware import PROBES, is_keyless, log_fields

_REFUSAL: Final = (
    "without keys this gateway answers to localhost and loopback addresses only, and the request's Host header names "
    "another; ask for 127.0.0.1, or start the gateway with that name as --allowed-host, or with --keys"
)


class Guard:
    """ASGI middleware that looks at the Host header, the connection and the caller.

    Requests for other names than loopback's and `allowed` are refused with 421; None: any name will do, and so does a
    request without a Host header, which is no browser's. The response of a caller who is revoked meanwhile has no end.
    """

    def __init__(
        self, app: ASGIApp, authenticator: Authenticator, admission: Admission, allowed: Collection[str] | None
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._admission = admission
        self._allowed = None if allowed is None else frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["path"] not in PROBES:
            if self._allowed is not None and "host" in headers:
                name = asked_host(headers["host"])
                if not is_loopback(name) and name not in self._allowed:
                    raise HTTPException(421, _REFUSAL)
            if scope["state"].get(SURPLUS):
                raise Unavailable("all connections of this gateway are taken; try again")
        if is_keyless(scope["path"]):
            await self._app(scope, receive, send)
            return
        token = callers.bearer_token(headers.get("authorization", ""))
        who = self._authenticator.authenticate(headers.get("x-api-key") if token is None else token)
        callers.serve(who)
        log_fields(scope, namespace=who.namespace)
        async with self._admission.admitted(who):
            await self._app(scope, receive, send)
