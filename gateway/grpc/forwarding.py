"""The contract's services over gRPC: callers authenticated, each RPC forwarded to a Worker by its descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from agentmem import errors
from agentmem.process.rpc import Metadata, maker
from agentmem.process.server import Register
from agentmem.process.wire import drain
from agentmem.rpcs import Rpc, arity, rpc_of, rpcs_of
from gateway.edge import authorization, callers
from gateway.edge.admission import Admission
from gateway.edge.callers import Authenticator
from gateway.metrics import GatewayMetrics
from gateway.worker import Worker

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]
    Admit = Callable[[Any, _Context], AbstractAsyncContextManager[None]]


async def write_in_time(context: _Context, message: Any, stall_limit: float | None) -> None:
    """Send a message of a stream. Raises ResourceExhausted where its reader takes nothing for `stall_limit` seconds."""
    try:
        async with asyncio.timeout(stall_limit):
            await context.write(message)
    except TimeoutError:
        raise errors.ResourceExhausted(f"the stream was aborted: nothing was read for {stall_limit:g} s") from None


def callers_own(metrics: GatewayMetrics) -> Admit:
    """Return what admits requests about the caller's own namespace, and counts turns."""

    @asynccontextmanager
    async def admitted(request: Any, _: _Context) -> AsyncIterator[None]:
        with metrics.generation("grpc") if rpc_of(request).options.turn else nullcontext():
            authorization.authorize_namespace(request, callers.caller().namespace)
            yield

    return admitted


@dataclass(frozen=True)
class Forwarder:
    """Makes handlers. Each request is served within `admitted`, which refuses it by raising AgentmemError or
    aborting.
    """

    worker: Worker
    admitted: Admit
    stall_limit: float | None = None

    def service(
        self, descriptor: ServiceDescriptor, serves: Callable[[Rpc], bool] = lambda _: True
    ) -> tuple[str, Register, Any]:
        """Return the RPCs of `descriptor` that it `serves`, as GrpcServer takes them."""
        served = {rpc.method.name: self._handler(rpc) for rpc in rpcs_of(descriptor) if serves(rpc)}

        def register(_: Any, server: grpc.aio.Server) -> None:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, served),))

        return descriptor.full_name, register, None

    def _handler(self, rpc: Rpc) -> Any:
        kind = arity(rpc.method.client_streaming, rpc.method.server_streaming)
        serve = {"unary_unary": self._unary, "unary_stream": self._stream, "stream_unary": partial(self._upload, rpc)}
        return maker(kind)(serve[kind], rpc.request.FromString, _written)

    async def _unary(self, request: Any, context: _Context) -> Any:
        async with self.admitted(request, context):
            return await self.worker.call(request, context.time_remaining())

    async def _stream(self, request: Any, context: _Context) -> AsyncIterator[Any]:
        async with (
            self.admitted(request, context),
            aclosing(self.worker.stream(request, context.time_remaining())) as messages,
        ):
            async for message in messages:
                await write_in_time(context, message, self.stall_limit)
        return
        yield  # a generator, as servers demand; but only write() shows a reader that stalls

    async def _upload(self, rpc: Rpc, requests: AsyncIterator[Any], context: _Context) -> Any:
        async def admitted() -> AsyncIterator[Any]:
            async for request in requests:
                async with self.admitted(request, context):
                    yield request

        try:
            return await self.worker.upload(rpc, admitted(), context.time_remaining())
        except errors.AgentmemError:
            await drain(requests)
            raise


def _written(answer: Any) -> bytes:
    written: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return written


class GrpcAuthentication:
    """Authenticates calls, for `process.rpc.RpcInterceptor`; handlers find the caller in `gateway.edge.callers`.

    A call whose key is revoked meanwhile is cut off with UNAUTHENTICATED.
    """

    def __init__(self, authenticator: Authenticator, admission: Admission) -> None:
        self._authenticator = authenticator
        self._admission = admission

    def __call__(self, method: str, metadata: Metadata) -> AbstractAsyncContextManager[None]:
        """Raises Unauthenticated, PermissionDenied."""
        who = self._authenticator.authenticate(_credential(metadata))
        authorization.authorize(method, who)
        callers.serve(who)
        return self._admission.admitted(who)


def _credential(metadata: Metadata) -> str | None:
    for name, value in metadata:
        if name == "authorization" and (token := callers.bearer_token(str(value))) is not None:
            return token
    return None
