"""What the HTTP door reads from a request before any dialect does: who asks, under which id, and the body."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agentmem.errors import InvalidArgument
from agentmem.keys import MAX_REQUEST_ID_BYTES, check_text
from agentmem.uploads import read_on
from agentmem.v1 import inference_pb2, types_pb2

AGENT_HEADER = "X-Agent-ID"
TURN_HEADER = "Idempotency-Key"
TEMPLATE_TIME_HEADER = "X-Agent-Template-Time"
HISTORY_HEADER = "X-Agent-History"
MEMORY_HEADER = "X-Agent-Memory"
WARNING_HEADER = "X-Agent-Warning"
"""Of answers: what a client that sent no X-Agent-Memory may not have meant."""

_MEMORY_MODES: Final = {
    "append": inference_pb2.MEMORY_MODE_APPEND,
    "replace": inference_pb2.MEMORY_MODE_REPLACE,
    "refuse": inference_pb2.MEMORY_MODE_REFUSE,
}
_HISTORIES: Final = {"memory": types_pb2.HISTORY_MEMORY, "template": types_pb2.HISTORY_TEMPLATE}
_MOST_TIME_BYTES = 64

_LARGE: Final = 64 * 1024
"""Bytes of a body that is read and translated in a thread: a megabyte of small messages takes most of a second."""

_T = TypeVar("_T")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def agent_id(headers: Headers) -> str:
    """The agent that X-Agent-ID names; empty where the header is absent.

    Headers are ASCII, so an id is percent-encoded UTF-8: `caf%C3%A9` is "café", and a "%" itself is `%25`. Raises
    InvalidArgument for an empty, over-long or ill-formed id.
    """
    value = _single(headers, AGENT_HEADER)
    return "" if value is None else percent_decoded(AGENT_HEADER, value)


def request_id(headers: Headers) -> str:
    """The turn's id for retries, from Idempotency-Key; empty where it is absent.

    X-Request-ID is not asked: proxies stamp one on each attempt, and some callers send one for all that they do.
    """
    value = _single(headers, TURN_HEADER)
    if value is None:
        return ""
    return check_text(TURN_HEADER, _ascii(TURN_HEADER, value), max_bytes=MAX_REQUEST_ID_BYTES)


def memory_mode(headers: Headers) -> "inference_pb2.MemoryMode.ValueType":
    """How the input relates to the memory of the agent that is named: AUTO where X-Agent-Memory does not say.

    Without X-Agent-ID it is UNSPECIFIED: an agent that is found by its conversation has the beginning of it. Raises
    InvalidArgument for an unknown mode, or one without an agent.
    """
    value, named = _single(headers, MEMORY_HEADER), AGENT_HEADER in headers
    if value is None:
        return inference_pb2.MEMORY_MODE_AUTO if named else inference_pb2.MEMORY_MODE_UNSPECIFIED
    if value not in _MEMORY_MODES:
        raise InvalidArgument(MEMORY_HEADER, f"must be one of {', '.join(_MEMORY_MODES)}")
    if not named:
        raise InvalidArgument(MEMORY_HEADER, "needs X-Agent-ID; without it an agent is found by its conversation")
    return _MEMORY_MODES[value]


def template_time(headers: Headers) -> str:
    """The moment that the agent's chat template is to see from X-Agent-Template-Time on; empty where it is absent."""
    value = _single(headers, TEMPLATE_TIME_HEADER)
    if value is None:
        return ""
    return check_text(TEMPLATE_TIME_HEADER, _ascii(TEMPLATE_TIME_HEADER, value), max_bytes=_MOST_TIME_BYTES)


def history(headers: Headers) -> "types_pb2.History.ValueType":
    """How what the agent has had of a chat is taken; unspecified where X-Agent-History is absent."""
    value = _single(headers, HISTORY_HEADER)
    if value is None:
        return types_pb2.HISTORY_UNSPECIFIED
    if value not in _HISTORIES:
        raise InvalidArgument(HISTORY_HEADER, f"must be one of {', '.join(_HISTORIES)}")
    return _HISTORIES[value]


def percent_decoded(name: str, value: str) -> str:
    """Percent-encoded UTF-8, decoded. Raises InvalidArgument that names `name` for an empty or ill-formed text."""
    check_percent_encoding(name, value)
    try:
        return check_text(name, unquote_to_bytes(value).decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidArgument(name, "is not percent-encoded UTF-8") from None


def check_percent_encoding(name: str, value: str) -> None:
    """Raises InvalidArgument for a `value` that is not ASCII, or has a "%" that encodes nothing."""
    if _BAD_ESCAPE.search(_ascii(name, value)):
        raise InvalidArgument(name, 'has a "%" that is not followed by two hex digits; write it as %25')


def _single(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise InvalidArgument(name, "is given more than once")
    return values[0] if values else None


def _ascii(name: str, value: str) -> str:
    if not value.isascii():
        raise InvalidArgument(name, "must be ASCII; percent-encode the UTF-8 of other characters")
    return value


async def json_bytes(request: Request, limit: int) -> bytes:
    """The body of a JSON request.

    Raises HTTPException 415 for another content type (which also keeps web pages from posting here unasked), and 413
    for a body over `limit` bytes, read no further than that.
    """
    body = bytearray()
    async for chunk in limited(request, "application/json", limit):
        body += chunk
    return bytes(body)


async def limited(request: Request, content_type: str, limit: int) -> AsyncIterator[bytes]:
    """The body of a request as it comes. Raises HTTPException as json_bytes does."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != content_type:
        raise HTTPException(415, f"send the body as content-type: {content_type}")
    too_large = HTTPException(413, f"the body is larger than {limit} bytes", {"connection": "close"})
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        if "expect" not in request.headers:  # or nothing of it was sent yet
            await read_on(request.stream())
        raise too_large
    size = 0
    stream = request.stream()
    async for chunk in stream:
        size += len(chunk)
        if size > limit:
            await read_on(stream)
            raise too_large
        yield chunk


async def worked_out(size: int, work: Callable[[], _T]) -> _T:
    """The result of `work`, on a body of `size` bytes: in a thread where streams would have to wait for long."""
    return await asyncio.to_thread(work) if size > _LARGE else work()
