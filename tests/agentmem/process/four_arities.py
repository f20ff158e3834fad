"""A service with a method of each arity, on a real socket, whose descriptor grpc knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool

from agentmem.channels import connect
from agentmem.process.server import GrpcServer
from agentmem.v1 import types_pb2

Usage = types_pb2.Usage
NAME = "test.four.Service"
ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
WRITES, UNSERVED = "writes", "unserved"

Fault = Callable[[Any], Awaitable[object]]


def _describe() -> None:
    """Make the service known, as importing a stub does."""
    file = descriptor_pb2.FileDescriptorProto(name="test/four.proto", package="test.four", syntax="proto3")
    file.dependency.append("agentmem/v1/types.proto")
    service = file.service.add(name="Service")
    for name in (*ARITIES, WRITES, UNSERVED):
        service.method.add(
            name=name,
            input_type=".agentmem.v1.AgentKey",
            output_type=".agentmem.v1.Usage",
            client_streaming=name.startswith("stream"),
            server_streaming=name.endswith("stream") or name == WRITES,
        )
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


_describe()


class Service:
    """Streams send `good` responses; then `fault` is awaited with the call's context, before the last one."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.good = 0
        self.entered, self.left = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def answer(self, name: str, context: Any) -> Any:
        self.entered.set()
        try:
            if self.fault is not None:
                await self.fault(context)
            return Usage()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.left.set()

    async def unary_unary(self, request: Any, context: Any) -> Any:
        return await self.answer("unary_unary", context)

    async def stream_unary(self, requests: AsyncIterator[Any], context: Any) -> Any:
        async for _ in requests:
            pass
        return await self.answer("stream_unary", context)

    def unary_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.kept = self._streamed(context)  # so that the garbage collector does not end it
        return self.kept

    async def _streamed(self, context: Any) -> AsyncIterator[Any]:
        try:
            for _ in range(self.good):
                yield Usage(completion_tokens=1)
            yield await self.answer("unary_stream", context)
        finally:
            self.left.set()

    async def stream_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        for _ in range(self.good):
            yield Usage(completion_tokens=1)
        async for _ in requests:
            pass
        yield await self.answer("stream_stream", context)

    async def writes(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Write responses itself, as the gateway's streams do, which must know when a reader stalls."""
        for _ in range(self.good + 1):
            await context.write(Usage())
        await self.answer(WRITES, context)
        return
        yield Usage()

    def register(self, service: Any, server: grpc.aio.Server) -> None:
        kinds = {**{arity: arity for arity in ARITIES}, WRITES: "unary_stream"}
        served = {
            name: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(service, name), types_pb2.AgentKey.FromString, Usage.SerializeToString
            )
            for name, kind in kinds.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, served),))


class Client:
    """Requests are bytes as they go over the wire; streams send two by default."""

    def __init__(self, channel: grpc.aio.Channel, server: GrpcServer) -> None:
        self.channel, self.server = channel, server

    def start(self, name: str, *requests: bytes, **given: Any) -> Any:
        sent = requests or (b"", b"")
        kind = name if name in ARITIES else "unary_stream"
        method: Any = getattr(self.channel, kind)(f"/{NAME}/{name}", response_deserializer=Usage.FromString)
        return method(iter(sent) if kind.startswith("stream") else sent[0], **given)

    async def read(self, call: Any) -> list[Any]:
        return [each async for each in call] if hasattr(call, "__aiter__") else [await call]

    async def failure(self, name: str, *requests: bytes) -> grpc.aio.AioRpcError:
        try:
            await self.read(self.start(name, *requests))
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("it went well")

    async def code(self, name: str, *requests: bytes, timeout: float | None = None) -> grpc.StatusCode:
        call = self.start(name, *requests, timeout=timeout)
        with suppress(grpc.aio.AioRpcError):
            await self.read(call)
        code: grpc.StatusCode = await call.code()
        return code


@asynccontextmanager
async def serving(service: Service, **settings: Any) -> AsyncIterator[Client]:
    """Yield a client of a server with these settings."""
    server = GrpcServer("127.0.0.1:0", [(NAME, service.register, service)], **settings)
    await server.start()
    async with connect(f"127.0.0.1:{server.port}") as channel:
        yield Client(channel, server)
    await server.stop(0)


def raising(error: Exception) -> Fault:
    async def fault(_: Any) -> None:
        raise error

    return fault


async def forever(_: Any) -> None:
    await asyncio.Event().wait()
