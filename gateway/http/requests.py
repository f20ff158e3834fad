"""Headers about agent and turn, and bodies."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import AfterValidator, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agentmem.errors import InvalidArgument
from agentmem.process.wire import drain
from agentmem.v1 import inference_pb2
from agentmem.validation import MAX_NAME_BYTES, MAX_PART_BYTES, MAX_REQUEST_ID_BYTES, check_text
from agentmem.words import NAME_HEADER
from gateway.api.validation import Strict, checked

AGENT_HEADER = "X-Agent-ID"
TURN_HEADER = "Idempotency-Key"
WARNING_HEADER = "X-Agent-Warning"
"""It says what a client that sent no X-Agent-Memory may not have meant."""

_LONG: Final = 64 * 1024
"""Bytes of a body that is read in a thread: a megabyte of small messages takes most of a second."""

BODY_SECONDS: Final = 30.0
"""Seconds that a body may keep its reader waiting, and one more for each 16 KiB that came."""
_SLOWEST: Final = 16 * 1024

_T = TypeVar("_T")
_Headers = TypeVar("_Headers", bound=Strict)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _field(name: str, what: str, most: int = 0) -> Any:
    """The header may be absent; it has at most `most` bytes, unless it is one of a few words."""
    text: Any = {"minLength": 1, "maxLength": most, "pattern": "^[!-~]([ -~]*[!-~])?$"} if most else {}
    return Field("", alias=name, description=what, json_schema_extra=text)


def _text(name: str, most: int) -> AfterValidator:
    return AfterValidator(lambda value: check_text(name, ascii_text(name, value), max_bytes=most))


class TurnName(Strict):
    """X-Request-ID is not asked, for proxies stamp one on each attempt."""

    turn: Annotated[str, _text(TURN_HEADER, MAX_REQUEST_ID_BYTES)] = _field(
        TURN_HEADER,
        "Names the turn: a retry with the same key and body is answered with the turn itself.",
        MAX_REQUEST_ID_BYTES,
    )


class TurnHeaders(TurnName):
    """Headers are ASCII, so an id is percent-encoded UTF-8."""

    agent: Annotated[str, AfterValidator(lambda value: percent_decoded(AGENT_HEADER, value))] = _field(
        AGENT_HEADER, "The agent whose turn it is, percent-encoded; else it is found by content.", 3 * MAX_PART_BYTES
    )
    name: Annotated[str, AfterValidator(lambda value: percent_decoded(NAME_HEADER, value, MAX_NAME_BYTES))] = _field(
        NAME_HEADER,
        "Part of the id of an agent that is made for the conversation of a request without X-Agent-ID, "
        "percent-encoded.",
        3 * MAX_NAME_BYTES,
    )
    memory: Literal["append", "replace", "refuse"] = _field(
        "X-Agent-Memory",
        "How the input relates to the memory of the agent that X-Agent-ID names; else the input decides.",
    )
    template_time: Annotated[str, _text("X-Agent-Template-Time", 64)] = _field(
        "X-Agent-Template-Time",
        "The moment, in ISO 8601, that the chat template sees as the present, and the agent's from then on.",
        64,
    )
    history: Literal["memory", "template"] = _field(
        "X-Agent-History",
        "How what the agent has had of a chat is taken: as it remembers it, with the reasoning that a "
        "template leaves out of earlier turns (memory, the default), or as the template renders it.",
    )

    @property
    def memory_mode(self) -> "inference_pb2.MemoryMode.ValueType":
        """AUTO unless it is said. UNSPECIFIED without X-Agent-ID: an agent that is found has the input's beginning."""
        if not self.agent:
            return inference_pb2.MEMORY_MODE_UNSPECIFIED
        return inference_pb2.MemoryMode.Value(f"MEMORY_MODE_{(self.memory or 'auto').upper()}")


def read_headers(headers: Headers, schema: type[_Headers]) -> _Headers:
    """Raises InvalidArgument that names the header."""
    given = {}
    for name in (field.alias or "" for field in schema.model_fields.values()):
        values = headers.getlist(name)
        if len(values) > 1:
            raise InvalidArgument(name, "is given more than once")
        if values:
            given[name] = values[0]
    if "X-Agent-Memory" in given and AGENT_HEADER not in given:
        raise InvalidArgument("X-Agent-Memory", "needs X-Agent-ID; without it an agent is found by its conversation")
    if NAME_HEADER in given and AGENT_HEADER in given:
        raise InvalidArgument(NAME_HEADER, "is for agents that are found by their conversation; leave X-Agent-ID out")
    return checked(given, schema)


def percent_decoded(name: str, value: str, most: int = MAX_PART_BYTES) -> str:
    """Raises InvalidArgument that names `name`."""
    check_percent_encoding(name, ascii_text(name, value))
    try:
        return check_text(name, unquote_to_bytes(value).decode("utf-8"), max_bytes=most)
    except UnicodeDecodeError:
        raise InvalidArgument(name, "is not percent-encoded UTF-8") from None


def check_percent_encoding(name: str, value: str) -> None:
    """Raise InvalidArgument for a "%" that encodes nothing."""
    if _BAD_ESCAPE.search(value):
        raise InvalidArgument(name, 'has a "%" that is not followed by two hex digits; write it as %25')


def ascii_text(name: str, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise InvalidArgument(name, "must be printable ASCII; percent-encode the UTF-8 of other characters")
    return value


async def read_body(request: Request, limit: int) -> bytearray:
    """Return the body of a JSON request.

    Raises HTTPException 415 for another content type (so web pages cannot post here unasked), 413 for more than `limit`
    bytes, and 408 for a body that comes too slowly.
    """
    body = bytearray()
    async for chunk in limited(request, "application/json", limit):
        body += chunk
    return body


async def worked(body: bytearray, work: Callable[..., _T], *arguments: Any) -> _T:
    """Work in a thread where streams would have to wait for long."""
    return await asyncio.to_thread(work, *arguments) if len(body) > _LONG else work(*arguments)


async def limited(request: Request, content_type: str, limit: int) -> AsyncIterator[bytes]:
    """Raises HTTPException as read_body does."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != content_type:
        raise HTTPException(415, f"send the body as content-type: {content_type}")
    too_large = HTTPException(413, f"the body is larger than {limit} bytes", {"connection": "close"})
    stream, clock = request.stream(), asyncio.get_running_loop().time
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        if "expect" not in request.headers:  # or nothing of it was sent yet
            await drain(stream)
        raise too_large
    size, left = 0, BODY_SECONDS
    while True:
        began = clock()
        try:
            async with asyncio.timeout(left):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly", {"connection": "close"}) from None
        if chunk is None:
            return
        size += len(chunk)
        left += len(chunk) / _SLOWEST - (clock() - began)
        if size > limit:
            await drain(stream)
            raise too_large
        yield chunk
