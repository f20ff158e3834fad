"""The metrics `grpc_server_*` of a process: its RPCs of all four arities, by the status that the caller gets.

The names and labels are those that gRPC's middleware in other languages has, so that dashboards made for it work.
Health checking and reflection are not counted, and neither are methods that nobody serves: labels stay bounded.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from prometheus_client import CollectorRegistry, Counter, Histogram

from agentmem import handlers
from agentmem.exposition import LATENCY_BUCKETS
from agentmem.outcomes import Outcome

if TYPE_CHECKING:  # generic in the stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

_LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
_TYPES: Final = {
    "unary_unary": "unary",
    "unary_stream": "server_stream",
    "stream_unary": "client_stream",
    "stream_stream": "bidi_stream",
}


class RpcMetrics:
    """Counts the RPCs of the services that it is told of. `interceptor` goes outermost."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"grpc_server_{name}", text, (*_LABELS, *labels), registry=registry)

        self._started = counter("started", "RPCs that began: their handler has the request, or its first part.")
        self._handled = counter("handled", "RPCs that ended, by the status that their caller gets.", "grpc_code")
        self._received = counter("msg_received", "Messages that came from callers, in streams and alone.")
        self._sent = counter("msg_sent", "Messages that went to callers, in streams and alone.")
        self._seconds = Histogram(
            "grpc_server_handling_seconds",
            "Seconds from an RPC's beginning to its end, whatever its status; of a stream, to its last message.",
            _LABELS,
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._methods: dict[str, _Method] = {}
        self.interceptor: grpc.aio.ServerInterceptor[Any, Any] = _Counting(self._methods)

    def serve(self, services: Iterable[str]) -> None:
        """Count the RPCs of these services, by their full names, each from 0. Raises KeyError for an unknown one."""
        for name in services:
            service: ServiceDescriptor = descriptor_pool.Default().FindServiceByName(name)
            for method in service.methods:
                self._methods[f"/{name}/{method.name}"] = self._method(method)

    def _method(self, method: MethodDescriptor) -> _Method:
        arity = handlers.arity(method.client_streaming, method.server_streaming)
        labels = (_TYPES[arity], method.containing_service.full_name, method.name)
        return _Method(
            self._started.labels(*labels),
            {code: self._handled.labels(*labels, code.name) for code in grpc.StatusCode},
            self._received.labels(*labels),
            self._sent.labels(*labels),
            self._seconds.labels(*labels),
        )


class _Method:
    """What is counted of one method."""

    def __init__(
        self,
        started: Counter,
        handled: dict[grpc.StatusCode, Counter],
        received: Counter,
        sent: Counter,
        seconds: Histogram,
    ) -> None:
        self.started = started
        self.handled = handled
        self.received = received
        self.sent = sent
        self.seconds = seconds


class _Counting(_ServerInterceptor):
    def __init__(self, methods: dict[str, _Method]) -> None:
        self._methods = methods

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        handler = await continuation(details)
        method = self._methods.get(details.method)
        return handler if handler is None or method is None else _counted(handler, method)


class _Call:
    """What stands around one call's handler."""

    def __init__(self, context: _Context, method: _Method) -> None:
        self._outcome = Outcome(context)
        self._method = method
        self._began = time.monotonic()

    def __enter__(self) -> None:
        self._method.started.inc()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._method.seconds.observe(time.monotonic() - self._began)
        self._method.handled[self._outcome.code(kind)].inc()


class _StreamContext:
    """A stream's context, which counts the messages that a handler reads and writes by itself."""

    def __init__(self, context: _Context, method: _Method) -> None:
        self._context = context
        self._method = method

    async def read(self) -> Any:
        message = await self._context.read()
        if message is not cast(Any, grpc.aio).EOF:  # the stubs have none
            self._method.received.inc()
        return message

    async def write(self, message: Any) -> None:
        await self._context.write(message)
        self._method.sent.inc()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _counted(handler: _Handler, method: _Method) -> _Handler:
    make, inner = handlers.parts(handler)
    behaviour = _stream if handler.response_streaming else _unary
    counted: _Handler = make(
        behaviour(inner, method, handler.request_streaming), handler.request_deserializer, handler.response_serializer
    )
    return counted


def _unary(inner: Any, method: _Method, request_streaming: bool) -> Any:
    async def call(request: Any, context: Any) -> Any:
        with _Call(context, method):
            if request_streaming:
                answer = await inner(_received(request, method), _StreamContext(context, method))
            else:
                method.received.inc()
                answer = await inner(request, context)
            method.sent.inc()
            return answer

    return call


def _stream(inner: Any, method: _Method, request_streaming: bool) -> Any:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        with _Call(context, method):
            if request_streaming:
                request = _received(request, method)
            else:
                method.received.inc()
            responses = inner(request, _StreamContext(context, method))
            if inspect.isawaitable(responses):  # it writes by itself, or refuses
                await responses
                return
            async with aclosing(responses):
                async for response in responses:
                    yield response
                    method.sent.inc()

    return call


async def _received(requests: AsyncIterator[Any], method: _Method) -> AsyncIterator[Any]:
    async for request in requests:
        method.received.inc()
        yield request
