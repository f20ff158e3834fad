"""Over a real socket, with methods of all four arities on one generic handler."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from agentmem import errors
from agentmem.channels import closing_stream, connect
from agentmem.process.server import GrpcServer
from agentmem.v1 import types_pb2

Usage = types_pb2.Usage
ARITIES = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
SECRET = "the prompt of somebody else"


class Service:
    """Every method counts the requests that it was sent; `fault` says what happens after `good` responses."""

    def __init__(self) -> None:
        self.fault: Callable[[], Awaitable[None]] | None = None
        self.good = 0
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.cancelled = False

    async def answer(self, requests: list[Any]) -> Any:
        self.entered.set()
        try:
            if self.fault is not None:
                await self.fault()
            return Usage(prompt_tokens=len(requests))
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.left.set()

    async def unary_unary(self, request: Any, context: Any) -> Any:
        return await self.answer([request])

    async def stream_unary(self, requests: AsyncIterator[Any], context: Any) -> Any:
        return await self.answer([request async for request in requests])

    def unary_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.kept = self._unary_stream(request)  # so that the garbage collector does not end it
        return self.kept

    async def _unary_stream(self, request: Any) -> AsyncIterator[Any]:
        try:
            for _ in range(self.good):
                yield Usage(completion_tokens=1)
            yield await self.answer([request])
        finally:
            self.left.set()

    async def stream_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        for _ in range(self.good):
            yield Usage(completion_tokens=1)
        yield await self.answer([request async for request in requests])

    def register(self, service: Any, server: grpc.aio.Server) -> None:
        handlers = {}
        for arity in ARITIES:
            make = getattr(grpc, f"{arity}_rpc_method_handler")
            serialize = Usage.SerializeToString
            handlers[arity] = make(getattr(service, arity), types_pb2.AgentKey.FromString, serialize)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))


class Client:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def start(self, arity: str, *requests: bytes, timeout: float | None = None) -> Any:
        """A call whose requests are bytes as they go over the wire."""
        method: Any = getattr(self._channel, arity)(f"/test.Service/{arity}", response_deserializer=Usage.FromString)
        return method(iter(requests) if arity.startswith("stream") else requests[0], timeout=timeout)

    async def call(self, arity: str, *requests: bytes, timeout: float | None = None) -> list[Any]:
        call = self.start(arity, *(requests or (b"",)), timeout=timeout)
        if arity.endswith("unary"):
            return [await call]
        return [response async for response in call]

    async def failure(self, arity: str, *requests: bytes, timeout: float | None = None) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(arity, *requests, timeout=timeout)
        return caught.value


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    server = GrpcServer("127.0.0.1:0", [("test.Service", service.register, service)])
    await server.start()
    async with connect(f"127.0.0.1:{server.port}") as channel:
        yield Client(channel)
    await server.stop(0)


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fault() -> None:
        raise error

    return fault


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize(
    "error",
    [errors.InvalidArgument("a.b", "is bad"), errors.NotFound("agent", "é"), errors.Unavailable("later", 2.5)],
    ids=lambda e: type(e).__name__,
)
async def test_our_errors_arrive_with_their_details(
    client: Client, service: Service, arity: str, error: errors.AgentmemError
) -> None:
    service.fault = raising(error)
    back = errors.from_rpc(await client.failure(arity))
    assert type(back) is type(error)
    assert back.message == error.message
    assert list(back.details()) == list(error.details())


@pytest.mark.parametrize("arity", ["unary_stream", "stream_stream"])
async def test_an_error_in_the_middle_of_a_stream_comes_after_what_was_sent(
    client: Client, service: Service, arity: str
) -> None:
    service.good, service.fault = 3, raising(errors.Aborted("another writer"))
    call, received = client.start(arity, b""), []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _collect(call, received)
    assert len(received) == 3
    assert caught.value.code() is grpc.StatusCode.ABORTED


async def _collect(call: Any, received: list[Any]) -> None:
    async for response in call:
        received.append(response)


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("error", [KeyError(SECRET), AssertionError(SECRET), OSError(5, SECRET), StopAsyncIteration()])
async def test_a_bug_tells_an_incident_and_nothing_else(
    client: Client, service: Service, arity: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    service.fault = raising(error)
    with caplog.at_level(logging.ERROR, "agentmem.process.rpc"):
        failure = await client.failure(arity)
    assert failure.code() is grpc.StatusCode.INTERNAL
    told = f"{failure.details()} {failure.trailing_metadata()}"
    assert SECRET not in told
    (record,) = (r for r in caplog.records if r.name == "agentmem.process.rpc")
    incident = record.getMessage().rsplit(" ", 1)[1]
    assert incident in told
    assert arity in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_peers_failure_is_the_same_failure_here(client: Client, service: Service, arity: str) -> None:
    inner = errors.NotFound("model", "m")
    service.fault = raising(inner)
    failed = await client.failure("unary_unary")
    service.fault = raising(failed)
    back = errors.from_rpc(await client.failure(arity))
    assert isinstance(back, errors.NotFound)
    assert (back.kind, back.name) == ("model", "m")


@pytest.mark.parametrize("arity", ARITIES)
async def test_what_is_not_implemented_says_so(client: Client, service: Service, arity: str) -> None:
    service.fault = raising(NotImplementedError("Method not implemented!"))
    failure = await client.failure(arity)
    assert failure.code() is grpc.StatusCode.UNIMPLEMENTED
    assert arity in (failure.details() or "")


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("data", [b"\x12\x02\xff\xfe", b"\x0a\x7f"], ids=["not UTF-8", "not a message"])
async def test_bytes_that_do_not_parse_are_refused(client: Client, service: Service, arity: str, data: bytes) -> None:
    back = errors.from_rpc(await client.failure(arity, data))
    assert isinstance(back, errors.InvalidArgument)
    assert back.field == "request"
    assert back.problem == "is not a agentmem.v1.AgentKey, whose texts are UTF-8"
    assert not service.entered.is_set() or arity.startswith("stream")


@pytest.mark.parametrize("arity", ["stream_unary", "stream_stream"])
async def test_a_later_request_that_does_not_parse(client: Client, arity: str) -> None:
    back = errors.from_rpc(await client.failure(arity, b"", b"", b"\x0a\x02\xff\xfe"))
    assert isinstance(back, errors.InvalidArgument)
    assert back.field == "request"


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_caller_that_cancels_ends_the_handler(client: Client, service: Service, arity: str) -> None:
    service.fault = forever
    call = client.start(arity, b"")
    reading = asyncio.create_task(_first(call, arity))
    await service.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await service.left.wait()
    assert service.cancelled
    assert await call.code() is grpc.StatusCode.CANCELLED


async def _first(call: Any, arity: str) -> Any:
    return await (call if arity.endswith("unary") else call.read())


async def test_a_reader_that_leaves_early_ends_the_stream(client: Client, service: Service) -> None:
    service.good = 10**9
    async with closing_stream(client.start("unary_stream", b"")) as responses:
        assert (await anext(responses)).completion_tokens == 1
    await service.left.wait()
