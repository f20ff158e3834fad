import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from agentmem import errors
from agentmem.process import rpc, wire
from agentmem.process.grpc_metrics import UNCOUNTED
from tests.agentmem.process.four_arities import ARITIES, Client, Service, forever, raising, serving

SECRET = "the prompt of somebody else"


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with serving(service) as client:
        yield client


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


async def test_a_stream_with_a_message_that_does_not_parse_is_read_to_its_end() -> None:
    """A client whose call ends while it still writes may read INTERNAL instead."""
    read: list[object] = []

    async def requests() -> AsyncIterator[object]:
        for message in (errors.InvalidArgument("request", "is no message"), "second", "third"):
            read.append(message)
            yield message

    context = cast(Any, SimpleNamespace(time_remaining=lambda: None))
    with pytest.raises(errors.InvalidArgument):
        async for _ in rpc._Call(requests(), context, "/m", UNCOUNTED, False).request:
            pass
    assert read[1:] == ["second", "third"]


async def test_the_rest_is_read() -> None:
    async def upload() -> AsyncIterator[int]:
        for number in range(3):
            yield number
        ended.set()

    ended = asyncio.Event()
    await wire.drain(upload())
    assert ended.is_set()


async def test_what_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def upload() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    monkeypatch.setattr(wire, "READ_ON_SECONDS", 0.01)
    async with asyncio.timeout(20):
        await wire.drain(upload())
