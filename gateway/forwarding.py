"""The gRPC door: any service of the contract, forwarded to the worker by its descriptor.

Requests are decoded, because they are checked; responses pass as bytes, so a newer worker's fields reach the caller,
but for those that `gateway.discretion` looks at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from agentmem import errors, handlers
from agentmem.server import Register
from agentmem.uploads import read_on
from gateway import upstream
from gateway.callers import caller
from gateway.discretion import discreet, may_name_directories
from gateway.metrics import GatewayMetrics
from gateway.namespaces import claim
from gateway.rpcs import generation, write_in_time

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]


@dataclass(frozen=True)
class Forwarder:
    """Makes servicers that forward. `stream_queue` and `stall_limit` are as in GatewaySettings."""

    channel: grpc.aio.Channel
    stream_queue: int
    stall_limit: float
    metrics: GatewayMetrics

    def service(self, descriptor: ServiceDescriptor) -> tuple[str, Register, Any]:
        """`descriptor` as GrpcServer takes it."""
        served = {method.name: self._handler(method) for method in descriptor.methods}

        def register(_: Any, server: grpc.aio.Server) -> None:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, served),))

        return descriptor.full_name, register, None

    def _handler(self, method: MethodDescriptor) -> _Handler:
        arity = handlers.arity(method.client_streaming, method.server_streaming)
        serve = {"unary_unary": self._unary, "unary_stream": self._stream, "stream_unary": self._upload}[arity]
        made: _Handler = handlers.maker(arity)(
            serve(method, upstream.stub(self.channel, method)),
            request_deserializer=GetMessageClass(method.input_type).FromString,
        )
        return made

    def _unary(self, method: MethodDescriptor, stub: Any) -> Any:
        async def call(request: Any, context: _Context) -> bytes:
            with generation(self.metrics, method):
                claim(request, caller().namespace)
                answer: bytes = await upstream.result(stub(request, timeout=context.time_remaining()))
                return _discreet(method, answer)

        return call

    def _upload(self, method: MethodDescriptor, stub: Any) -> Any:
        async def call(requests: AsyncIterator[Any], context: _Context) -> bytes:
            with generation(self.metrics, method):
                outgoing = stub(timeout=context.time_remaining())
                try:
                    async for request in requests:
                        claim(request, caller().namespace)
                        await outgoing.write(request)
                    await outgoing.done_writing()
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await read_on(requests)  # the worker has ended the call, and its status says why
                except errors.AgentmemError:
                    outgoing.cancel()
                    await read_on(requests)
                    raise
                except BaseException:
                    outgoing.cancel()
                    raise
                answer: bytes = await upstream.result(outgoing)
                return answer

        return call

    def _stream(self, method: MethodDescriptor, stub: Any) -> Any:
        async def call(request: Any, context: _Context) -> AsyncIterator[bytes]:
            with generation(self.metrics, method):
                claim(request, caller().namespace)
                async with upstream.read_ahead(
                    stub(request, timeout=context.time_remaining()), self.stream_queue
                ) as messages:
                    async for message in messages:
                        await write_in_time(context, message, self.stall_limit)
            return
            yield b""  # a generator, as servers demand; but only write() shows a reader that stalls

        return call


def _discreet(method: MethodDescriptor, answer: bytes) -> bytes:
    """The response as the caller may read it. Fields that only a newer worker knows stay."""
    if caller().admin or not may_name_directories(method.output_type):
        return answer
    response: Any = GetMessageClass(method.output_type).FromString(answer)
    discreet(response, caller())
    written: bytes = response.SerializeToString()
    return written
