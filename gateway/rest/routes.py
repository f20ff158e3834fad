"""The REST endpoints as routes of the HTTP door.

An agent's id is one part of the path, percent-encoded, and may hold any UTF-8, a "/" as %2F too: so these routes match
the path as it was sent, where others match it decoded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import quote

from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from agentmem.errors import InvalidArgument
from gateway import upstream
from gateway.callers import caller
from gateway.http.disconnects import until_disconnect
from gateway.http.requests import json_bytes, request_id, worked_out
from gateway.http.rim import tell
from gateway.http.turns import Turns, answer, generation
from gateway.json_body import parse_body
from gateway.namespaces import claim
from gateway.rest.endpoints import ENDPOINTS, Endpoint, Values
from gateway.rest.files import send_file, take_file
from gateway.rest.parameters import fill_parameters, given
from gateway.rest.schema import ContractModel
from gateway.rest.transcoding import fill, to_json
from gateway.rest.turns import exchange_of, model_of_body


def rest_routes(shared: Turns, max_import_bytes: int) -> list[Route]:
    """A route for each path of the table."""
    served = [RestEndpoint(endpoint, shared, max_import_bytes) for endpoint in ENDPOINTS]
    by_path = sorted(served, key=lambda one: one.endpoint.path)
    return [
        EncodedRoute(path, _ByMethod({one.endpoint.method: one for one in ones}))
        for path, ones in groupby(by_path, key=lambda one: one.endpoint.path)
    ]


class EncodedRoute(Route):
    """A route that matches the path as it was sent. Parts of it stay percent-encoded in `path_params`."""

    def __init__(self, path: str, endpoint: "_ByMethod") -> None:
        super().__init__(path, endpoint, methods=list(endpoint.served))
        self.methods = set(endpoint.served)  # without the HEAD that GET brings along: an export is no small matter

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As in Route."""
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
            scope = {**scope, "path": raw.decode("latin-1")}
        return super().matches(scope)


@dataclass(frozen=True)
class _ByMethod:
    """What serves one path, by method."""

    served: "Mapping[str, RestEndpoint]"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.served[scope["method"]](scope, receive, send)


@dataclass(frozen=True)
class RestEndpoint:
    """One endpoint as an ASGI application."""

    endpoint: Endpoint
    shared: Turns
    max_import_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            values = given(self.endpoint, request.path_params, scope.get("query_string", b""))
            tell(scope, **{name: str(values[name]) for name in ("agent", "model") if name in values})
            await self._serve(request, values, send)
        except InvalidArgument as error:
            raise self.endpoint.renamed(error) from None

    async def _serve(self, request: Request, values: Values, send: Send) -> None:
        rpc = self.endpoint.rpc
        message: Any = GetMessageClass(rpc.input_type)()
        if rpc.client_streaming:
            fill_parameters(message, self.endpoint, values)
            claim(message, caller().namespace)
            made = await take_file(self._call(), message, request, self.max_import_bytes)
            await JSONResponse(to_json(made))(request.scope, request.receive, send)
            return
        body = await self._body(request) if self.endpoint.has_body else None
        if rpc.name == "Generate" and body is not None:
            exchange = exchange_of(self._filled(message, values, request), body)
            await answer(self.shared, request, send, exchange, agent=message.key.agent_id)
            return
        if body is not None:
            fill(message, body)
        self._filled(message, values, request)
        if rpc.server_streaming:
            call = self._call()(message)
            work = send_file(call, message.key.agent_id, send, self.shared.stall_limit)
            await until_disconnect(request.receive, work)
            return
        with self._counted():
            response = await until_disconnect(request.receive, upstream.result(self._call()(message)))
        await JSONResponse(to_json(response))(request.scope, request.receive, send)

    async def _body(self, request: Request) -> ContractModel:
        content = await json_bytes(request, self.shared.max_body_bytes)
        return await worked_out(len(content), lambda: parse_body(content, model_of_body(self.endpoint)))

    def _filled(self, message: Any, values: Values, request: Request) -> Any:
        """`message` with all that the body does not have."""
        fill_parameters(message, self.endpoint, values)
        if self.endpoint.is_turn:
            message.request_id = request_id(request.headers)
        claim(message, caller().namespace)
        return message

    def _call(self) -> Callable[..., Any]:
        """The RPC, to be called with its request, if it is not a stream."""
        rpc = self.endpoint.rpc
        return upstream.stub(self.shared.channel, rpc, GetMessageClass(rpc.output_type).FromString)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a Prefill as the generation that it is."""
        if not self.endpoint.is_turn:
            yield
            return
        with generation(self.shared.metrics):
            yield
