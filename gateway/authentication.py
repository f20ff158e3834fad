"""The gRPC door's question who is calling, asked before a request is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc_status import rpc_status

from agentmem.errors import Unauthenticated
from gateway import callers
from gateway.callers import Authenticator

if TYPE_CHECKING:  # generic in the stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

OPEN = ("/grpc.health.", "/grpc.reflection.")
"""Services that everybody may call: what they tell is public."""


class AuthenticationInterceptor(_ServerInterceptor):
    """Only callers that the authenticator lets in reach a handler, which runs in the context that is set here."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        if details.method.startswith(OPEN):
            return await continuation(details)
        try:
            callers.serve(self._authenticator.authenticate(_credential(details)))
        except Unauthenticated as error:
            refusal: _Handler = _refusal(await continuation(details), error)
            return refusal
        return await continuation(details)


def _credential(details: grpc.HandlerCallDetails) -> str | None:
    for name, value in details.invocation_metadata or ():
        scheme, _, token = str(value).partition(" ")
        if name == "authorization" and scheme.lower() == "bearer":
            return token.strip()
    return None


def _refusal(handler: _Handler | None, error: Unauthenticated) -> Any:
    """A handler of the same kind that refuses, and parses nothing."""
    if handler is None:
        return None

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await cast(Any, context).abort_with_status(rpc_status.to_status(error.to_status()))

    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(refuse)
