"""The interceptor around every handler: metrics, tracing, authentication and errors.

An AgentmemError becomes its status with details, a peer's failure the same failure here, anything else INTERNAL with an
incident id, whose text only the log gets.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from agentmem import errors, tracing
from agentmem.process.grpc_metrics import UNCOUNTED, MethodCounts, RpcMetrics
from agentmem.process.logs import event
from agentmem.process.wire import check_counts, drain
from agentmem.rpcs import arity
from agentmem.v1 import types_pb2

if TYPE_CHECKING:  # generic in the stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

log = logging.getLogger(__name__)

PROBES: Final = ("/grpc.health.", "/grpc.reflection.")
"""Methods that probes and tools call: public, without spans, logged at DEBUG. All versions, since clients try the next
one only after UNIMPLEMENTED.
"""

Metadata = Sequence[tuple[str, str | bytes]]
Authenticate = Callable[[str, Metadata], AbstractAsyncContextManager[None]]
"""From a call's method and metadata, the context that its handler runs in. Raises AgentmemErrors in the call's own
task.
"""

_ID_FIELDS: Final = {tracing.AGENT: "agent", tracing.MODEL: "model"}
_DEADLINE_SLACK: Final = 0.01
"""A share of the caller's time: deadlines travel rounded to three digits."""
_DEADLINE_SLACK_SECONDS: Final = 0.002


def maker(arity: str) -> Any:
    return getattr(grpc, f"{arity}_rpc_method_handler")


class RpcInterceptor(_ServerInterceptor):
    """Wraps each handler of a server.

    An `edge` serves others than our processes: it returns request ids in the initial metadata, which takes a unary call
    0.15 ms, and logs at INFO. Without `authenticate` everyone may call.
    """

    def __init__(
        self, *, edge: bool = False, metrics: RpcMetrics | None = None, authenticate: Authenticate | None = None
    ) -> None:
        self._edge = edge
        self._counts = {} if metrics is None else metrics.methods
        self._authenticate = authenticate

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        metadata = details.invocation_metadata or ()
        tracing.enter(tracing.received(metadata))  # each call has a task of its own, with its handler
        handler = await continuation(details)
        if handler is None:
            return handler
        method, admitted, refusal = details.method, None, None
        if self._authenticate is not None and not method.startswith(PROBES):
            try:
                admitted = self._authenticate(method, metadata)
            except errors.AgentmemError as error:
                refusal = error
        counts = self._counts.get(method, UNCOUNTED)
        kind = arity(handler.request_streaming, handler.response_streaming)
        wrap = _stream if handler.response_streaming else _unary
        wrapped: _Handler = maker(kind)(
            wrap(
                _refusing(refusal) if refusal is not None else getattr(handler, kind),
                lambda request, context: _Call(request, context, method, counts, self._edge),
                admitted or nullcontext(),
                handler.request_streaming,
            ),
            # A refused caller's bytes are not parsed.
            None if refusal is not None else _checked(handler.request_deserializer),
            handler.response_serializer,
        )
        return wrapped


def _refusing(error: errors.AgentmemError) -> Callable[[Any, _Context], Awaitable[None]]:
    async def refuse(request: Any, _: _Context) -> None:
        if isinstance(request, AsyncIterator):
            await drain(request)
        raise error

    return refuse


def _unary(inner: Any, begin: Callable[[Any, _Context], _Call], admitted: Any, upload: bool) -> Any:
    async def call(request: Any, context: _Context) -> Any:
        async with begin(request, context) as served, _mapped(admitted, request, context, served.method):
            answer = await inner(served.request, served.context if upload else context)
            served.counts.sent.inc()
            return answer

    return call


def _stream(inner: Any, begin: Callable[[Any, _Context], _Call], admitted: Any, _: bool) -> Any:
    async def call(request: Any, context: _Context) -> AsyncIterator[Any]:
        async with begin(request, context) as served, _mapped(admitted, request, context, served.method):
            responses = inner(served.request, served.context)
            if inspect.isawaitable(responses):  # it refuses, or writes by itself
                await responses
                return
            async with aclosing(responses):
                async for response in responses:
                    yield response
                    served.counts.sent.inc()

    return call


@asynccontextmanager
async def _mapped(admitted: Any, request: Any, context: _Context, method: str) -> AsyncIterator[None]:
    """Run a handler as its caller; an error becomes the call's status."""
    try:
        async with admitted:
            try:
                yield
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the rim: mapped or logged
                await _abort(error, context, method)
    except errors.AgentmemError as error:  # of the authentication
        if isinstance(request, AsyncIterator):
            await drain(request)
        await _abort(error, context, method)


class _Call:
    """One call, counted, timed, traced and logged."""

    def __init__(self, request: Any, context: _Context, method: str, counts: MethodCounts, edge: bool) -> None:
        self.method = method
        self.counts = counts
        self.context = cast("_Context", _CountedContext(context, counts))
        self._raw = request
        self._context = context
        self._edge = edge
        self._began = time.monotonic()
        self._time = context.time_remaining()
        self._span: tracing.Span | None = None

    @property
    def request(self) -> Any:
        """The request or requests, counted. Raises InvalidArgument if malformed."""
        if isinstance(self._raw, AsyncIterator):
            return self._requests(self._raw)
        self.counts.received.inc()
        return _parsed(self._raw)

    async def _requests(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self.counts.received.inc()
            if isinstance(request, errors.InvalidArgument):
                await drain(requests)  # a client that is cut off while it writes reads INTERNAL instead
            yield _parsed(request)

    async def __aenter__(self) -> _Call:
        self.counts.started.inc()
        trace = tracing.current()
        if trace is None:
            return self
        if tracing.on() and not self.method.startswith(PROBES):
            within = tracing.served(self.method[1:], trace, self._attributes())
            tracing.enter(within)
            self._span = within.span
        if self._edge:
            try:
                await self._context.send_initial_metadata(trace.answer)
            except BaseException as error:  # its caller has left
                await self.__aexit__(type(error), None, None)
                raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        code = self._code(kind)
        self.counts.ended(code, time.monotonic() - self._began)
        if self._span is not None:
            self._span.set({"rpc.grpc.status_code": code.value[0]})
            self._span.end("" if code is grpc.StatusCode.OK else code.name)
        level = logging.INFO if self._edge and not self.method.startswith(PROBES) else logging.DEBUG
        if log.isEnabledFor(level):
            ms = round((time.monotonic() - self._began) * 1000)
            event(log, "answered", level, method=self.method, status=code.name, ms=ms, **self._ids())

    def _code(self, raised: type[BaseException] | None) -> grpc.StatusCode:
        code = cast(Any, self._context).code()  # 0 if none was set
        if isinstance(code, grpc.StatusCode):
            return code
        if raised is None:
            return grpc.StatusCode.OK
        if issubclass(raised, asyncio.CancelledError | GeneratorExit):
            return grpc.StatusCode.DEADLINE_EXCEEDED if self._is_late() else grpc.StatusCode.CANCELLED
        return grpc.StatusCode.UNKNOWN

    def _is_late(self) -> bool:
        """Return whether a call that was cut off has reached its deadline, at either end.

        The caller's own clock ends a call like a cancellation, just before the server's would.
        """
        left = self._context.time_remaining()
        if left is None or self._time is None:
            return False
        return left <= self._time * _DEADLINE_SLACK + _DEADLINE_SLACK_SECONDS

    def _attributes(self) -> dict[str, tracing.Attribute]:
        _, service, method = self.method.split("/", 2)
        attributes: dict[str, tracing.Attribute] = {
            "rpc.system": "grpc", "rpc.service": service, "rpc.method": method
        }  # fmt: skip
        ids = self._ids()
        return attributes | {name: ids[field] for name, field in _ID_FIELDS.items() if field in ids}

    def _ids(self) -> dict[str, str]:
        """Return the agent in a request, which an edge has not checked yet."""
        key = getattr(self._raw, "key", None)
        if not isinstance(key, types_pb2.AgentKey):
            return {}
        ids = {"agent": key.agent_id, "model": key.model_id, "namespace": key.namespace}
        return {name: tracing.identifier(value) for name, value in ids.items() if value}


class _CountedContext:
    def __init__(self, context: _Context, counts: MethodCounts) -> None:
        self._context = context
        self._counts = counts

    async def read(self) -> Any:
        message = await self._context.read()
        if message is not cast(Any, grpc.aio).EOF:  # the stubs have none
            self._counts.received.inc()
        return message

    async def write(self, message: Any) -> None:
        await self._context.write(message)
        self._counts.sent.inc()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _checked(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    message_type = getattr(deserialize, "__self__", None)
    if deserialize is None or not (isinstance(message_type, type) and issubclass(message_type, Message)):
        return deserialize
    descriptor = cast(Descriptor, message_type.DESCRIPTOR)

    def checked(data: bytes) -> Any:
        try:
            check_counts(descriptor, data)
            return deserialize(data)
        except errors.InvalidArgument as error:
            return error  # for the handler to refuse
        except DecodeError:
            return errors.InvalidArgument("request", f"is not a {descriptor.full_name}, whose texts are UTF-8")

    return checked


def _parsed(request: Any) -> Any:
    if isinstance(request, errors.InvalidArgument):
        raise request
    return request


async def _abort(error: BaseException, context: _Context, method: str) -> NoReturn:
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
