"""REST's endpoints.

An agent's id is one part of the path and may hold a "/" as %2F: so these routes match the path as it was sent.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from agentmem.errors import AgentmemError, InvalidArgument
from agentmem.kv.blockfile import CHUNK_BYTES
from agentmem.process.wire import drain
from agentmem.rpcs import options, rpc_of
from agentmem.v1 import agent_pb2
from gateway.api.complaints import shown_name
from gateway.api.contract_json import to_json
from gateway.api.endpoints import Endpoint, Kind, Values
from gateway.api.rest import ENDPOINTS, STREAM, RestAnswer, event_of, exchange_of, model_of_body, model_of_query
from gateway.api.transcoding import read_json
from gateway.api.validation import checked
from gateway.edge.authorization import authorize_namespace, require_admin
from gateway.edge.callers import caller
from gateway.http.middleware import log_fields
from gateway.http.requests import (
    TurnName,
    ascii_text,
    check_percent_encoding,
    limited,
    percent_decoded,
    read_body,
    read_headers,
    worked,
)
from gateway.http.streaming import Stream, begun, send_events, until_disconnect
from gateway.http.turns import Answering, Turns
from gateway.worker import Service, Worker

FILE_TYPE: Final = "application/octet-stream"


async def send_file(
    messages: AsyncGenerator[agent_pb2.ExportAgentResponse, None], agent: str, send: Send, stall_limit: float
) -> None:
    """Raises AgentmemError: before the first chunk nothing was sent, and after it the response is left without an end,
    so that a part is not taken for the whole.
    """
    async with aclosing(messages) as chunks:
        first = await anext(chunks, None)
        response = Stream(send, stall_limit)
        name = quote(f"{agent}.agent", safe="")
        await response.start(
            [("content-type", FILE_TYPE), ("content-disposition", f"attachment; filename*=UTF-8''{name}")]
        )
        if first is not None:
            await response.write(first.chunk)
        async for one in chunks:
            await response.write(one.chunk)
        await response.end()


MAX_IMPORT_BYTES: Final = 64 * 1024**3


async def take_file(
    worker: Worker, target: agent_pb2.ImportAgentRequest, request: Request
) -> agent_pb2.ImportAgentResponse:
    """Raises AgentmemError, HTTPException as `limited` does, and ClientDisconnect, which cancels the import."""
    body = limited(request, FILE_TYPE, MAX_IMPORT_BYTES)
    pieces = _pieces(body)
    first = await anext(pieces, b"")  # nothing is begun for a body that is refused by its headers
    sent = asyncio.Event()

    async def requests() -> AsyncIterator[agent_pb2.ImportAgentRequest]:
        yield target
        if first:
            yield agent_pb2.ImportAgentRequest(chunk=first)
        async for piece in pieces:
            yield agent_pb2.ImportAgentRequest(chunk=piece)
        sent.set()

    async def receive_after() -> Any:
        await sent.wait()  # before that the body is read
        return await request.receive()

    try:
        work = worker.upload(rpc_of(target), requests())
        made: agent_pb2.ImportAgentResponse = await until_disconnect(receive_after, work)
    except AgentmemError:
        await drain(body)
        raise
    return made


async def _pieces(body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """All but the last have CHUNK_BYTES bytes."""
    held = bytearray()
    async for data in body:
        held += data
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)


_MOST_PARAMETERS: Final = 16


def given(endpoint: Endpoint, path: Mapping[str, str], query: bytes) -> Values:
    """`path` is still percent-encoded. Raises InvalidArgument."""
    in_path = {name: percent_decoded(name, part) for name, part in path.items()}
    asked: dict[str, str] = {}
    for name, text in _pairs(query):
        if name in asked:
            raise InvalidArgument(shown_name(name), "is given more than once")
        asked[name] = text
    query_values = checked(asked, model_of_query(endpoint))
    values = {**in_path, **{name: getattr(query_values, name) for name in asked}}
    endpoint.check(values)
    return values


def fill_parameters(message: Message, endpoint: Endpoint, values: Values) -> None:
    for name, value in values.items():
        if name in endpoint.fields:
            *outer, last = endpoint.fields[name].split(".")
            target: Any = message
            for part in outer:
                target = getattr(target, part)
            setattr(target, last, value)


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        text = ascii_text("query", query.decode("ascii"))
        check_percent_encoding("query", text)
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except UnicodeDecodeError:
        raise InvalidArgument("query", "is not percent-encoded UTF-8") from None
    except ValueError:
        raise InvalidArgument("query", f"has more than {_MOST_PARAMETERS} parameters") from None


def rest_routes(shared: Turns, own: Mapping[str, Service]) -> list[Route]:
    """`own` are the services of this process, by their full names."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [EncodedRoute(path, RestResource(served, shared, own)) for path, served in by_path.items()]


class EncodedRoute(Route):
    """Parts of the path stay percent-encoded."""

    def __init__(self, path: str, resource: "RestResource") -> None:
        super().__init__(path, resource, methods=list(resource.served))
        self.methods = set(resource.served)  # without the HEAD that GET brings along: an export is no small matter

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches({**scope, "path": scope["raw_path"].decode("latin-1")})


@dataclass(frozen=True)
class RestResource:
    """The endpoints of one path, by method."""

    served: Mapping[str, Endpoint]
    shared: Turns
    own: Mapping[str, Service]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, request = self.served[scope["method"]], Request(scope, receive)
        if options(endpoint.rpc).admin:
            require_admin(caller())
        try:
            values = given(endpoint, request.path_params, scope.get("query_string", b""))
            log_fields(scope, **{name: str(values[name]) for name in ("agent", "model", "workflow") if name in values})
            await self._serve(endpoint, request, values, send)
        except InvalidArgument as error:
            raise endpoint.renamed(error) from None

    async def _serve(self, endpoint: Endpoint, request: Request, values: Values, send: Send) -> None:
        rpc, shared = endpoint.rpc, self.shared
        message: Any = GetMessageClass(rpc.input_type)()
        streamed = await self._read(endpoint, request, message) if endpoint.has_body else False
        fill_parameters(message, endpoint, values)
        if endpoint.is_named:
            message.request_id = read_headers(request.headers, TurnName).turn
        authorize_namespace(message, caller().namespace)
        service = self.own.get(rpc.containing_service.full_name, shared.worker)
        match endpoint.kind:
            case Kind.TURN:
                answering = Answering(shared, request, send, exchange_of(message, streamed))
                await until_disconnect(request.receive, answering.run(message.request_id, message.key.agent_id))
            case Kind.EVENTS:
                work = self._send_events(service.stream(message), request.scope, send)
                await until_disconnect(request.receive, work)
            case Kind.FILE:
                work = send_file(service.stream(message), message.key.agent_id, send, shared.settings.stall_limit)
                await until_disconnect(request.receive, work)
            case Kind.UPLOAD:
                await _respond(await take_file(shared.worker, message, request), request, send)
            case Kind.UNARY:
                with shared.metrics.generation("http") if endpoint.is_turn else nullcontext():
                    made = await until_disconnect(request.receive, service.call(message))
                await _respond(made, request, send)

    async def _send_events(self, messages: AsyncGenerator[Message, None], scope: Scope, send: Send) -> None:
        """Raises AgentmemError for what is refused before the first message, with nothing sent."""
        async with begun(messages, streamed=True) as (first, everything):
            if first.done():
                first.result()
            said = ([event_of(message)] async for message in everything)
            await send_events(said, RestAnswer(), scope, send, self.shared.settings.stall_limit)

    async def _read(self, endpoint: Endpoint, request: Request, message: Any) -> bool:
        """Return whether the body asks for a stream."""
        body = await read_body(request, self.shared.settings.max_body_bytes)
        said = await worked(body, read_json, body, model_of_body(endpoint), message, frozenset({STREAM}))
        return getattr(said, STREAM, False)


async def _respond(message: Message, request: Request, send: Send) -> None:
    await JSONResponse(to_json(message))(request.scope, request.receive, send)
