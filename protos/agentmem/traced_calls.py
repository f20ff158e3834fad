"""Both ends of a call, for `agentmem.tracing`: the server sets the request from metadata, the channel passes it on.

Where traces go out (`agentmem.spans`), the server gives each call a span. The channel gives none: it carries the span
that is worked on, and the peer's span is the child of that.

The client's end is a channel and no interceptor: grpc.aio's intercepted calls are other objects with other manners, and
cost something with each message of a stream.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from agentmem import handlers, spans, tracing
from agentmem.logs import event
from agentmem.outcomes import Outcome
from agentmem.v1 import types_pb2

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # generic in the stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

PROBES: Final = ("/grpc.health.", "/grpc.reflection.")
"""How the methods begin that probes and tools call. All versions: a client that asks for one that is not served tries
the next only where it hears UNIMPLEMENTED."""


class TracingInterceptor(_ServerInterceptor):
    """Sets the request that a handler serves, and its span, and logs a line when it was answered. Add it outermost.

    A `door` sends the id back, in the initial metadata, and its lines are INFO. Those of other servers are DEBUG, as
    are those of health and reflection, which have no spans. (Sending costs a unary call 0.15 ms, and between our
    processes nobody reads it.)
    """

    def __init__(self, *, door: bool) -> None:
        self._door = door

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        # Each call has a task of its own, and its handler runs in it, too.
        tracing.enter(tracing.received(details.invocation_metadata or ()))
        handler = await continuation(details)
        return handler if handler is None else _answering(handler, details.method, self._door)


_NAMES: Final = {spans.AGENT: "agent", spans.MODEL: "model"}


class _Answer:
    """What stands around one call's handler. `request` is whose ids are told; a stream of requests has none."""

    def __init__(self, request: Any, context: _Context, method: str, door: bool) -> None:
        self._key = _key(request)
        self._context = context
        self._method = method
        self._door = door
        self._outcome = Outcome(context)
        self._began = time.monotonic()
        self._span: spans.Span | None = None

    async def __aenter__(self) -> None:
        trace = tracing.current()
        if trace is None:
            return
        if spans.on() and not self._method.startswith(PROBES):
            within = spans.served(self._method[1:], trace, self._attributes())
            tracing.enter(within)
            self._span = within.span
        if self._door:
            try:
                await self._context.send_initial_metadata(trace.answer)
            except BaseException as error:  # its caller has gone already
                await self.__aexit__(type(error))
                raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        level = logging.INFO if self._door and not self._method.startswith(PROBES) else logging.DEBUG
        if self._span is None and not log.isEnabledFor(level):
            return
        code = self._outcome.code(kind)
        if self._span is not None:
            self._span.set({"rpc.grpc.status_code": code.value[0]})
            self._span.end("" if code is grpc.StatusCode.OK else code.name)
        if log.isEnabledFor(level):
            ms = round((time.monotonic() - self._began) * 1000)
            event(log, "answered", level, method=self._method, status=code.name, ms=ms, **self._ids())

    def _attributes(self) -> dict[str, spans.Attribute]:
        _, service, method = self._method.split("/", 2)
        told: dict[str, spans.Attribute] = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        ids = self._ids()
        return told | {name: ids[field] for name, field in _NAMES.items() if field in ids}

    def _ids(self) -> dict[str, str]:
        key = self._key
        ids = {} if key is None else {"agent": key.agent_id, "model": key.model_id, "namespace": key.namespace}
        return {name: spans.identifier(value) for name, value in ids.items() if value}


def _key(request: Any) -> types_pb2.AgentKey | None:
    """Which agent a request is about, if it says so. At a door it is not checked yet."""
    key = getattr(request, "key", None)
    return key if isinstance(key, types_pb2.AgentKey) else None


def _answering(handler: _Handler, method: str, door: bool) -> _Handler:
    make, inner = handlers.parts(handler)
    behaviour = _stream if handler.response_streaming else _unary
    made: _Handler = make(behaviour(inner, method, door), handler.request_deserializer, handler.response_serializer)
    return made


def _unary(inner: Any, method: str, door: bool) -> Any:
    async def call(request: Any, context: _Context) -> Any:
        async with _Answer(request, context, method, door):
            return await inner(request, context)

    return call


def _stream(inner: Any, method: str, door: bool) -> Any:
    async def call(request: Any, context: _Context) -> AsyncIterator[Any]:
        async with _Answer(request, context, method, door):
            responses = inner(request, context)
            if inspect.isawaitable(responses):  # an interceptor's refusal
                await responses
                return
            async with aclosing(responses):
                async for response in responses:
                    yield response

    return call


class TracedChannel(grpc.aio.Channel):
    """A channel whose calls carry the request that they are made for; metadata given with a call go first."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _carrying(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _carrying(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _carrying(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _carrying(self._channel.stream_stream(*args, **kwargs))

    async def __aenter__(self) -> TracedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


def _carrying(method: Any) -> Any:
    def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
        trace = tracing.current()
        if trace is not None:
            given = tuple(metadata or ())
            names = {name for name, _ in given}
            metadata = (*given, *(pair for pair in trace.metadata if pair[0] not in names))
        return method(*args, metadata=metadata, **kwargs)

    return call
