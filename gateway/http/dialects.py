"""Which dialect a request speaks, for the pages that tell of errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import Scope

from agentmem.errors import AgentmemError
from gateway.exchange import Json
from gateway.openai import errors as openai


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


def dialect_of(scope: Scope) -> Dialect:  # noqa: ARG001 - there is one dialect so far
    """The dialect of a request; OpenAI's where nothing says otherwise."""
    return _OPENAI
