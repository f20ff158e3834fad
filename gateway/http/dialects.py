"""Which dialect a request speaks, for the pages that tell of errors."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from agentmem.errors import AgentmemError
from gateway.anthropic import errors as anthropic
from gateway.exchange import Json
from gateway.openai import errors as openai
from gateway.rest.errors import error_body as rest_error_body


class Page(NamedTuple):
    """An error as a response."""

    status: int
    body: Json


@dataclass(frozen=True)
class Dialect:
    """How one dialect tells of errors; the last argument is the request's id.

    `page` does it of ours, and `http_body` of those that only HTTP knows: no such route, no such method, a body that is
    too large or of another type.
    """

    page: Callable[[AgentmemError, str], Page]
    http_body: Callable[[int, str, str], Json]


_OPENAI = Dialect(
    page=lambda error, _: Page(error.http_status, openai.error_body(error)),
    http_body=lambda status, detail, _: openai.http_error_body(status, detail),
)


_ANTHROPIC = Dialect(
    page=lambda error, request_id: Page(anthropic.status(error), anthropic.error_body(error, request_id)),
    http_body=anthropic.http_error_body,
)


def _openai(named: Callable[[str], str | None]) -> Dialect:
    return replace(_OPENAI, page=lambda error, _: Page(error.http_status, openai.error_body(error, named)))


_ENDPOINTS = {
    "/v1/completions": _openai(openai.completion_param),
    "/v1/responses": _openai(openai.response_param),
}
"""Those of OpenAI that have names of their own for fields of the contract."""

_REST = Dialect(
    page=lambda error, _: Page(error.http_status, rest_error_body(error)),
    http_body=_OPENAI.http_body,
)
"""OpenAI's shape, under the contract's names of fields."""

_REST_PATHS = ("/v1/agents", "/v1/turn-hints", "/v1/generations/")


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of a request; OpenAI's where nothing says otherwise."""
    path: str = scope["path"]
    if path.startswith(_REST_PATHS):
        return _REST
    return _ANTHROPIC if speaks_anthropic(scope) else _ENDPOINTS.get(path, _OPENAI)


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the path is Anthropic's alone, or the request has the header that its SDKs always send."""
    path: str = scope["path"]
    return path == "/v1/messages" or path.startswith("/v1/messages/") or "anthropic-version" in Headers(scope=scope)
