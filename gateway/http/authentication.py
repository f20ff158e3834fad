"""The HTTP door's question who is calling, asked before anything is read of a request."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentmem.errors import Unauthenticated
from gateway import callers
from gateway.callers import Authenticator
from gateway.http.rim import ErrorPage

OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that everybody may ask."""


class Authentication:
    """ASGI middleware: only callers that the authenticator lets in get further."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            try:
                callers.serve(self._authenticator.authenticate(_credential(Headers(scope=scope))))
            except Unauthenticated as error:
                await ErrorPage(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _credential(headers: Headers) -> str | None:
    """What a caller shows: a bearer token, or the x-api-key of Anthropic's SDK."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key")
