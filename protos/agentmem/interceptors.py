"""The one place where errors become gRPC status, for all four arities.

An AgentmemError becomes its status with details, a peer's failed call becomes the same failure here, and anything else
becomes INTERNAL with an incident id: its text goes to the log and never to the caller.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from agentmem import errors, handlers
from agentmem.wire import ill_formed_text

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # generic in the stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor


class _Undecodable:
    """A request whose bytes do not parse; stands in for the message until the handler can refuse it."""

    def __init__(self, error: errors.InvalidArgument) -> None:
        self.error = error


class ErrorInterceptor(_ServerInterceptor):
    """Maps what handlers raise. Add it innermost, so that other interceptors see the mapped status."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        handler = await continuation(details)
        return handler if handler is None else _mapped(handler, details.method)


def _mapped(handler: _Handler, method: str) -> _Handler:
    deserialize = _checked(handler.request_deserializer)
    make, inner = handlers.parts(handler)
    behaviour = _stream if handler.response_streaming else _unary
    mapped: _Handler = make(behaviour(inner, method), deserialize, handler.response_serializer)
    return mapped


def _checked(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    message_type = getattr(deserialize, "__self__", None)
    if deserialize is None or not (isinstance(message_type, type) and issubclass(message_type, Message)):
        return deserialize
    descriptor = cast(Descriptor, message_type.DESCRIPTOR)

    def checked(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            field = ill_formed_text(descriptor, data)
            problem = "must be well-formed UTF-8" if field else f"is not a {descriptor.full_name}"
            return _Undecodable(errors.InvalidArgument(field or "request", problem))

    return checked


def _refuse_undecodable(request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise request.error
    if isinstance(request, AsyncIterator):
        return _decoded(request)
    return request


async def _decoded(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _refuse_undecodable(request)


def _unary(inner: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await inner(_refuse_undecodable(request), context)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the rim: everything is mapped or logged
            await _abort(error, context, method)

    return call


def _stream(inner: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        responses = None
        try:
            responses = inner(_refuse_undecodable(request), context)
            if inspect.isawaitable(responses):  # it writes by itself, as Health.Watch does
                await responses
                return
            async for response in responses:
                yield response
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the rim: everything is mapped or logged
            await _abort(error, context, method)
        finally:
            if responses is not None and hasattr(responses, "aclose"):
                await responses.aclose()

    return call


async def _abort(error: BaseException, context: grpc.aio.ServicerContext[Any, Any], method: str) -> NoReturn:
    if isinstance(error, asyncio.CancelledError | grpc.aio.AbortError):
        raise error
    if isinstance(error, grpc.aio.AioRpcError):
        error = errors.from_rpc(error)
    elif isinstance(error, NotImplementedError):
        error = errors.Unimplemented(f"{method} is in the contract, but this server does not serve it")
    if not isinstance(error, errors.AgentmemError):
        incident = uuid.uuid4().hex[:12]
        log.error("unexpected error in %s, incident %s", method, incident, exc_info=error)
        error = errors.Internal(f"internal error; the server's log has it as incident {incident}")
    await cast(Any, context).abort_with_status(rpc_status.to_status(error.to_status()))
    raise AssertionError("abort_with_status does not return")
