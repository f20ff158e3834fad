"""The HTTP door's questions before anything is read of a request: who is calling, and may they now?"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import callers
from gateway.admission import Admission
from gateway.callers import Authenticator
from gateway.http.probes import OPEN
from gateway.http.rim import tell


class Authentication:
    """ASGI middleware: only callers whom the authenticator lets in get further.

    Raises Unauthenticated, Unavailable and ResourceExhausted, which become pages at the rim. The response of a caller
    who is revoked while it is sent is left without an end, and the server cuts the connection.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, admission: Admission) -> None:
        self._app = app
        self._authenticator = authenticator
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        who = self._authenticator.authenticate(_credential(Headers(scope=scope)))
        callers.serve(who)
        tell(scope, namespace=who.namespace)
        async with self._admission.admitted(who):
            await self._app(scope, receive, send)


def _credential(headers: Headers) -> str | None:
    """What a caller shows: a bearer token, or the x-api-key of Anthropic's SDK."""
    token = callers.bearer_token(headers.get("authorization", ""))
    return headers.get("x-api-key") if token is None else token
