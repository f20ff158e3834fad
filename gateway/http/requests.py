"""What is read of an HTTP request before any dialect does: its headers about agent and turn, and its body."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import MAX_REQUEST_ID_BYTES, check_text
from agentmem.wire import drain

AGENT_HEADER = "X-Agent-ID"
TURN_HEADER = "Idempotency-Key"
TEMPLATE_TIME_HEADER = "X-Agent-Template-Time"
HISTORY_HEADER = "X-Agent-History"
MEMORY_HEADER = "X-Agent-Memory"
WARNING_HEADER = "X-Agent-Warning"
"""Of answers: what a client that sent no X-Agent-Memory may not have meant."""

_MEMORY_MODES: Final = {
    "": inference_pb2.MEMORY_MODE_AUTO,
    "append": inference_pb2.MEMORY_MODE_APPEND,
    "replace": inference_pb2.MEMORY_MODE_REPLACE,
    "refuse": inference_pb2.MEMORY_MODE_REFUSE,
}
_HISTORIES: Final = {
    "": types_pb2.HISTORY_UNSPECIFIED,
    "memory": types_pb2.HISTORY_MEMORY,
    "template": types_pb2.HISTORY_TEMPLATE,
}
_MOST_TIME_BYTES = 64

_LARGE: Final = 64 * 1024
"""Bytes of a body that is read and translated in a thread: a megabyte of small messages takes most of a second."""

_T = TypeVar("_T")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def agent_id(headers: Headers) -> str:
    """Return the agent that X-Agent-ID names; empty where the header is absent.

    Headers are ASCII, so an id is percent-encoded UTF-8: `caf%C3%A9` is "café", and a "%" itself is `%25`. Raises
    InvalidArgument for an empty, over-long or ill-formed id.
    """
    value = _single(headers, AGENT_HEADER)
    return "" if value is None else percent_decoded(AGENT_HEADER, value)


def request_id(headers: Headers) -> str:
    """Return the turn's id for retries, from Idempotency-Key; empty where it is absent.

    X-Request-ID is not asked: proxies stamp one on each attempt, and some callers send one for all that they do.
    """
    return _text(headers, TURN_HEADER, MAX_REQUEST_ID_BYTES)


def template_time(headers: Headers) -> str:
    """Return the moment that the agent's chat template is to see from now on; empty without X-Agent-Template-Time."""
    return _text(headers, TEMPLATE_TIME_HEADER, _MOST_TIME_BYTES)


def history(headers: Headers) -> "types_pb2.History.ValueType":
    """Return how what the agent has had of a chat is taken; unspecified without X-Agent-History."""
    return _HISTORIES[_single(headers, HISTORY_HEADER, _HISTORIES) or ""]


def memory_mode(headers: Headers) -> "inference_pb2.MemoryMode.ValueType":
    """Return how the input relates to the memory of the agent that is named: AUTO without X-Agent-Memory.

    Without X-Agent-ID it is UNSPECIFIED: an agent that is found by its conversation has the beginning of it. Raises
    InvalidArgument for an unknown mode, or one without an agent.
    """
    value, named = _single(headers, MEMORY_HEADER, _MEMORY_MODES), AGENT_HEADER in headers
    if value is not None and not named:
        raise InvalidArgument(MEMORY_HEADER, "needs X-Agent-ID; without it an agent is found by its conversation")
    return _MEMORY_MODES[value or ""] if named else inference_pb2.MEMORY_MODE_UNSPECIFIED


def percent_decoded(name: str, value: str) -> str:
    """Return percent-encoded UTF-8, decoded. Raises InvalidArgument that names `name` for a bad or empty text."""
    check_percent_encoding(name, value)
    try:
        return check_text(name, unquote_to_bytes(value).decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidArgument(name, "is not percent-encoded UTF-8") from None


def check_percent_encoding(name: str, value: str) -> None:
    """Raise InvalidArgument for a `value` that is not ASCII, or has a "%" that encodes nothing."""
    if _BAD_ESCAPE.search(_ascii(name, value)):
        raise InvalidArgument(name, 'has a "%" that is not followed by two hex digits; write it as %25')


def _single(headers: Headers, name: str, known: Collection[str] = ()) -> str | None:
    """Return a header's value, one of the `known` ones if there are any, or None where it is absent."""
    values = headers.getlist(name)
    if len(values) > 1:
        raise InvalidArgument(name, "is given more than once")
    if values and known and not (values[0] and values[0] in known):
        raise InvalidArgument(name, f"must be one of {', '.join(filter(None, known))}")
    return values[0] if values else None


def _text(headers: Headers, name: str, max_bytes: int) -> str:
    value = _single(headers, name)
    return "" if value is None else check_text(name, _ascii(name, value), max_bytes=max_bytes)


def _ascii(name: str, value: str) -> str:
    if not value.isascii():
        raise InvalidArgument(name, "must be ASCII; percent-encode the UTF-8 of other characters")
    return value


async def parsed_body(request: Request, limit: int, parse: Callable[[bytes], _T]) -> _T:
    """Return what `parse` makes of the body of a JSON request; in a thread where streams would have to wait for long.

    Raises HTTPException 415 for another content type (which also keeps web pages from posting here unasked), and 413
    for a body over `limit` bytes, read no further than that.
    """
    body = bytearray()
    async for chunk in limited(request, "application/json", limit):
        body += chunk
    content = bytes(body)
    return await asyncio.to_thread(parse, content) if len(content) > _LARGE else parse(content)


async def limited(request: Request, content_type: str, limit: int) -> AsyncIterator[bytes]:
    """Yield the body of a request as it comes. Raises HTTPException as parsed_body does."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != content_type:
        raise HTTPException(415, f"send the body as content-type: {content_type}")
    too_large = HTTPException(413, f"the body is larger than {limit} bytes", {"connection": "close"})
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        if "expect" not in request.headers:  # or nothing of it was sent yet
            await drain(request.stream())
        raise too_large
    size = 0
    stream = request.stream()
    async for chunk in stream:
        size += len(chunk)
        if size > limit:
            await drain(stream)
            raise too_large
        yield chunk
