"""Headers let the page ask nothing but this gateway."""

import mimetypes
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

STATIC: Final = Path(__file__).parent / "static"

PAGE: Final = "/ui/"

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Markup that got in could neither run nor tell anybody."""

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_FILES: Final = StaticFiles(directory=STATIC, html=True)
mimetypes.add_type("text/javascript", ".js")  # the machine's may differ


def page_routes() -> list[Route]:
    return [Route(PAGE.rstrip("/"), _to_page), Route(f"{PAGE}{{file:path}}", _file)]


async def _to_page(_: Request) -> Response:
    return RedirectResponse(PAGE.strip("/") + "/", 308, _HEADERS)  # relative: a proxy may have it below a path


async def _file(request: Request) -> Response:
    response = await _FILES.get_response(request.path_params["file"] or ".", request.scope)
    response.headers.update(_HEADERS)
    return response
