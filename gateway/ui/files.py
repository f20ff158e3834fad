"""The files of the page, from memory, with headers that let it load and ask nothing but this gateway.

Browsers keep the files and ask each time whether they are still these, so that a new version is there at once.
"""

import hashlib
import mimetypes
from functools import cache
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.ui.report import SHELL, STATIC, shell

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
"""What of the page a browser runs, loads and asks: so markup that got in could neither run nor tell anybody."""

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_TYPES: Final = {".js": "text/javascript", ".json": "application/json", ".svg": "image/svg+xml", ".txt": "text/plain"}
"""Not left to the machine's own table, which may say anything of .js."""


class StaticFile(NamedTuple):
    """One file, and what its headers say of it."""

    content: bytes
    media_type: str
    etag: str


@cache
def files() -> dict[str, StaticFile]:
    """Return all files by their paths below `PAGE`, read once."""
    contents = {
        path.relative_to(STATIC).as_posix(): path.read_bytes()
        for path in sorted(each for each in STATIC.rglob("*") if each.is_file())
    }
    contents[SHELL] = shell().encode()
    return {name: _static(name, content) for name, content in contents.items()}


def _static(name: str, content: bytes) -> StaticFile:
    suffix = PurePosixPath(name).suffix
    media_type = _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
    return StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def page_routes() -> list[Route]:
    """Return the page's routes."""
    return [Route(PAGE.rstrip("/"), _to_page), Route(f"{PAGE}{{file:path}}", _file)]


async def _to_page(_: Request) -> Response:
    return RedirectResponse(PAGE.strip("/") + "/", 308, _HEADERS)  # relative, for a proxy may have it below a path


async def _file(request: Request) -> Response:
    found = files().get(request.path_params["file"] or "index.html")
    if found is None:
        raise HTTPException(404, f"the page has no such file; it begins at {PAGE}")
    headers = {**_HEADERS, "etag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
