"""The gRPC door's questions before a request is served: who is calling, and may they now?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc_status import rpc_status

from agentmem import handlers
from agentmem.errors import AgentmemError
from agentmem.traced_calls import PROBES
from agentmem.uploads import read_on
from gateway import callers
from gateway.admission import Admission
from gateway.callers import Authenticator, Caller

if TYPE_CHECKING:  # generic in the stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

ADMIN = frozenset({"/agentmem.v1.ModelService/LoadModel", "/agentmem.v1.ModelService/UnloadModel"})
"""RPCs that concern the callers of all namespaces."""


class AuthenticationInterceptor(_ServerInterceptor):
    """Only callers whom the authenticator lets in reach a handler, which runs in the context that is set here.

    A caller who asks too much is refused, and one who is revoked meanwhile is cut off with UNAUTHENTICATED.
    """

    def __init__(self, authenticator: Authenticator, admission: Admission) -> None:
        self._authenticator = authenticator
        self._admission = admission

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        if details.method.startswith(PROBES):  # what they tell is public
            return await continuation(details)
        try:
            who = self._authenticator.authenticate(_credential(details))
            if details.method in ADMIN:
                callers.require_admin(who)
        except AgentmemError as error:
            refusal: _Handler = _refusal(await continuation(details), error)
            return refusal
        callers.serve(who)
        handler = await continuation(details)
        return handler if handler is None else self._admitted(handler, who)

    def _admitted(self, handler: _Handler, who: Caller) -> _Handler:
        async def unary(request: Any, context: _Context) -> Any:
            try:
                async with self._admission.admitted(who):
                    return await inner(request, context)
            except AgentmemError as error:
                await _refuse(handler, request, context, error)

        async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
            try:
                async with self._admission.admitted(who):
                    async for response in inner(request, context):
                        yield response
            except AgentmemError as error:
                await _refuse(handler, request, context, error)

        make, inner = handlers.parts(handler)
        behaviour = stream if handler.response_streaming else unary
        admitted: _Handler = make(behaviour, handler.request_deserializer, handler.response_serializer)
        return admitted


def _credential(details: grpc.HandlerCallDetails) -> str | None:
    for name, value in details.invocation_metadata or ():
        if name == "authorization" and (token := callers.bearer_token(str(value))) is not None:
            return token
    return None


def _refusal(handler: _Handler | None, error: AgentmemError) -> Any:
    """A handler of the same kind that refuses, and parses nothing."""
    if handler is None:
        return None

    async def refuse(request: Any, context: _Context) -> None:
        await _refuse(handler, request, context, error)

    return handlers.parts(handler)[0](refuse)


async def _refuse(handler: _Handler, request: Any, context: _Context, error: AgentmemError) -> None:
    if handler.request_streaming:
        await read_on(request)
    await cast(Any, context).abort_with_status(rpc_status.to_status(error.to_status()))
