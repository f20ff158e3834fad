"""Which names a door without keys answers to.

Such a door trusts whoever reaches its loopback address, and a browser reaches it for any web page whose own name was
made to lead there (DNS rebinding). The name that the browser asked for is in the Host header, and gives the page away.
"""

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentmem.addresses import asked_host, is_loopback
from gateway.http.probes import OPEN
from gateway.http.rim import http_error_page

_REFUSAL: Final = (
    "without keys this gateway answers to localhost and loopback addresses only, and the request's Host header names "
    "another; ask for 127.0.0.1, or start the gateway with that name as --allowed-host, or with --keys"
)


class KnownHosts:
    """ASGI middleware: requests for other names than this machine's own, and those in `allowed`, are refused with 421.

    Any port will do. A request without a Host header is no browser's.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._is_known(Headers(scope=scope).get("host")):
            await self._app(scope, receive, send)
            return
        refused = HTTPException(421, _REFUSAL)
        await (await http_error_page(Request(scope), refused))(scope, receive, send)

    def _is_known(self, header: str | None) -> bool:
        if header is None:
            return True
        name = asked_host(header)
        return is_loopback(name) or name in self._allowed
