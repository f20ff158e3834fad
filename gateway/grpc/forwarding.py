"""The services of the contract over gRPC, each forwarded to the worker by its descriptor.

Requests are decoded, because they are checked; responses pass as bytes, so a newer worker's fields reach the caller,
but for those that `gateway.edge.authorization` redacts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from agentmem import errors
from agentmem.process import rpc
from agentmem.process.server import Register
from agentmem.process.wire import drain
from agentmem.rpcs import options
from gateway import upstream
from gateway.edge.authorization import authorize_namespace, may_name_directories, redact
from gateway.edge.callers import caller
from gateway.metrics import GatewayMetrics

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]


async def write_in_time(context: _Context, message: Any, stall_limit: float) -> None:
    """Send a message of a stream. Raises ResourceExhausted where its reader takes nothing for `stall_limit` seconds."""
    try:
        async with asyncio.timeout(stall_limit):
            await context.write(message)
    except TimeoutError:
        raise errors.ResourceExhausted(f"the stream was aborted: nothing was read for {stall_limit:g} s") from None


@dataclass(frozen=True)
class Forwarder:
    """Makes handlers that forward. `stall_limit` is as in GatewaySettings."""

    channel: grpc.aio.Channel
    stall_limit: float
    metrics: GatewayMetrics

    def service(self, descriptor: ServiceDescriptor) -> tuple[str, Register, Any]:
        """Return `descriptor` as GrpcServer takes it."""
        served = {method.name: self._handler(method) for method in descriptor.methods}

        def register(_: Any, server: grpc.aio.Server) -> None:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, served),))

        return descriptor.full_name, register, None

    def _handler(self, method: MethodDescriptor) -> _Handler:
        arity = rpc.arity(method.client_streaming, method.server_streaming)
        serve = {"unary_unary": self._unary, "unary_stream": self._stream, "stream_unary": self._upload}[arity]
        made: _Handler = rpc.maker(arity)(
            serve(method, upstream.stub(self.channel, method)),
            request_deserializer=GetMessageClass(method.input_type).FromString,
        )
        return made

    def _unary(self, method: MethodDescriptor, stub: Any) -> Any:
        async def call(request: Any, context: _Context) -> bytes:
            with self._counted(method):
                authorize_namespace(request, caller().namespace)
                answer: bytes = await upstream.result(stub(request, timeout=context.time_remaining()))
                return _redacted(method, answer)

        return call

    def _upload(self, method: MethodDescriptor, stub: Any) -> Any:
        async def call(requests: AsyncIterator[Any], context: _Context) -> bytes:
            with self._counted(method):
                outgoing = stub(timeout=context.time_remaining())
                try:
                    async for request in requests:
                        authorize_namespace(request, caller().namespace)
                        await outgoing.write(request)
                    await outgoing.done_writing()
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await drain(requests)  # the worker has ended the call, and its status says why
                except errors.AgentmemError:
                    outgoing.cancel()
                    await drain(requests)
                    raise
                except BaseException:
                    outgoing.cancel()
                    raise
                answer: bytes = await upstream.result(outgoing)
                return answer

        return call

    def _stream(self, method: MethodDescriptor, stub: Any) -> Any:
        async def serve(request: Any, context: _Context) -> AsyncIterator[bytes]:
            with self._counted(method):
                authorize_namespace(request, caller().namespace)
                call = stub(request, timeout=context.time_remaining())
                async with aclosing(upstream.messages(call)) as messages:
                    async for message in messages:
                        await write_in_time(context, message, self.stall_limit)
            return
            yield b""  # a generator, as servers demand; but only write() shows a reader that stalls

        return serve

    def _counted(self, method: MethodDescriptor) -> AbstractContextManager[None]:
        """Return what counts an RPC that generates; the server counts all RPCs."""
        return self.metrics.generation("grpc") if options(method).turn else nullcontext()


def _redacted(method: MethodDescriptor, answer: bytes) -> bytes:
    """Return the response as the caller may read it. Fields that only a newer worker knows stay."""
    if caller().admin or not may_name_directories(method.output_type):
        return answer
    response: Any = GetMessageClass(method.output_type).FromString(answer)
    redact(response, caller())
    written: bytes = response.SerializeToString()
    return written
