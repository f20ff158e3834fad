"""Over real sockets: a client, a front that calls a back, and what each of them sees, for all four arities."""

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from agentmem import errors, tracing
from agentmem.channels import MAX_METADATA_BYTES, ClientTls, connect
from agentmem.process.rpc import RpcInterceptor
from agentmem.process.server import GrpcServer
from tests.agentmem.test_tracing import PARENT

ARITIES = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
FULL = (("x-request-id", "mine"), ("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "k=v"))

Seen = tuple[tracing.Trace | None, dict[str, str]]


class Service:
    """Notes which request it serves, and with which metadata; then calls itself on `onward`, if it is set."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.later: list[asyncio.Task[tracing.Trace | None]] = []
        self.onward: grpc.aio.Channel | None = None
        self.fault: Exception | None = None

    async def note(self, arity: str, context: Any) -> bytes:
        metadata = {name: str(value) for name, value in context.invocation_metadata()}
        self.seen.append((tracing.current(), metadata))
        self.later.append(asyncio.create_task(_later()))
        if self.fault is not None:
            raise self.fault
        if self.onward is not None:
            await _read(_start(self.onward, arity))
        return b"done"

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        return await self.note("unary_unary", context)

    async def unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        yield await self.note("unary_stream", context)

    async def stream_unary(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in requests:
            pass
        return await self.note("stream_unary", context)

    async def stream_stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield b"one"
        yield await self.note("stream_stream", context)

    def register(self, service: Any, server: grpc.aio.Server) -> None:
        handlers = {arity: getattr(grpc, f"{arity}_rpc_method_handler")(getattr(self, arity)) for arity in ARITIES}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))


async def _later() -> tracing.Trace | None:
    await asyncio.sleep(0)
    return tracing.current()


def _start(channel: grpc.aio.Channel, arity: str, **given: Any) -> Any:
    method = getattr(channel, arity)(f"/test.Service/{arity}")
    return method(iter([b"x", b"y"]) if arity.startswith("stream") else b"x", **given)


async def _read(call: Any) -> list[bytes]:
    return [part async for part in call] if hasattr(call, "__aiter__") else [await call]


async def returned(call: Any) -> dict[str, str]:
    await _read(call)
    return dict(await call.initial_metadata())


@pytest.fixture
async def back() -> AsyncIterator[Service]:
    service = Service()
    service.server = server = GrpcServer("127.0.0.1:0", [("test.Service", service.register, service)])  # type: ignore[attr-defined]
    await server.start()
    yield service
    await server.stop(0)


@pytest.fixture
async def front(back: Service) -> AsyncIterator[Service]:
    service = Service()
    service.server = server = GrpcServer(  # type: ignore[attr-defined]
        "127.0.0.1:0", [("test.Service", service.register, service)], edge=True
    )
    await server.start()
    async with connect(f"127.0.0.1:{cast(Any, back).server.port}") as service.onward:
        yield service
    await server.stop(0)


@pytest.fixture
async def channel(front: Service) -> AsyncIterator[grpc.aio.Channel]:
    async with connect(f"127.0.0.1:{cast(Any, front).server.port}") as channel:
        yield channel


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_request_flows_to_the_back_and_its_id_returns(
    channel: grpc.aio.Channel, front: Service, back: Service, arity: str
) -> None:
    assert await returned(_start(channel, arity, metadata=FULL)) == {"x-request-id": "mine", "traceparent": PARENT}
    trace = tracing.Trace("mine", PARENT, "a=1", "k=v")
    for service in (front, back):
        ((seen, given),) = service.seen
        assert seen == trace
        assert given.items() >= dict(FULL).items()
        assert [await task for task in service.later] == [trace]


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_failed_call_has_its_id_too(
    channel: grpc.aio.Channel, front: Service, back: Service, arity: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentmem.process.rpc")
    back.fault = errors.NotFound("agent", "x")
    call = _start(channel, arity, metadata=(("x-request-id", "failing"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read(call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert dict(await call.initial_metadata())["x-request-id"] == "failing"
    # The line follows the status: once the front has ended the call, it is written.
    await cast(Any, front).server.stop(5)
    lines = [record.fields for record in caplog.records if record.message == "answered"]  # type: ignore[attr-defined]
    assert [{**line, "ms": 0} for line in lines] == [
        {"method": f"/test.Service/{arity}", "status": "NOT_FOUND", "ms": 0}
    ], "one line of the front's, and none of the back's, which is no door"


class Gone:
    async def send_initial_metadata(self, _: object) -> None:
        raise asyncio.CancelledError

    def time_remaining(self) -> float | None:
        return None

    def code(self) -> int:
        return 0


async def test_who_leaves_before_the_first_byte_has_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentmem.process.rpc")
    service = Service()

    async def found(_: object) -> Any:
        return grpc.unary_unary_rpc_method_handler(cast(Any, service.unary_unary))

    details = cast(Any, SimpleNamespace(method="/test.Service/unary_unary", invocation_metadata=FULL))
    handler = await RpcInterceptor(edge=True).intercept_service(found, details)
    with pytest.raises(asyncio.CancelledError):
        await cast(Any, handler).unary_unary(b"", Gone())
    lines = [record.fields for record in caplog.records if record.message == "answered"]  # type: ignore[attr-defined]
    assert [line["status"] for line in lines] == ["CANCELLED"]
    assert service.seen == []


@pytest.mark.parametrize("arity", ARITIES)
async def test_calls_at_the_same_time_are_not_mixed_up(
    channel: grpc.aio.Channel, front: Service, back: Service, arity: str
) -> None:
    names = [str(number) for number in range(50)]
    calls = [_start(channel, arity, metadata=(("x-request-id", name),)) for name in names]
    answers = await asyncio.gather(*map(returned, calls))
    assert [answer["x-request-id"] for answer in answers] == names
    assert sorted(given["x-request-id"] for _, given in back.seen) == sorted(names)
    assert all(seen is not None and seen.request_id == given["x-request-id"] for seen, given in back.seen)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ((("x-request-id", "a b"),), {}),
        ((("x-request-id", "r" * 10_000),), {}),
        ((("x-request-id", ""),), {}),
        ((("x-request-id", "good"), ("traceparent", "00-junk"), ("tracestate", "a=1")), {"x-request-id": "good"}),
        ((("x-request-id", "good"), ("baggage", "k=" + "v" * 8_190), ("traceparent", PARENT)), None),
    ],
    ids=["space", "10 KB", "empty", "bad traceparent", "all of 8 KiB of baggage"],
)
async def test_hostile_metadata_harms_nothing(
    channel: grpc.aio.Channel, back: Service, metadata: Any, expected: dict[str, str] | None
) -> None:
    answer = await returned(_start(channel, "unary_unary", metadata=metadata))
    ((_, given),) = back.seen
    if expected is None:  # all of it is good
        assert {name: given[name] for name, _ in metadata} == dict(metadata)
    else:
        assert given["x-request-id"] == answer["x-request-id"]
        assert answer == (expected or answer)
        assert len(answer["x-request-id"]) < 40
        assert not {"traceparent", "tracestate"} & given.keys()


async def test_more_metadata_than_a_call_may_have_is_refused(channel: grpc.aio.Channel, front: Service) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read(_start(channel, "unary_unary", metadata=(("baggage", "x" * MAX_METADATA_BYTES),)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert front.seen == []


async def test_what_a_call_is_given_goes_before_what_it_is_made_for(front: Service, channel: grpc.aio.Channel) -> None:
    with tracing.serving(tracing.Trace("outer", PARENT)):
        answer = await returned(_start(channel, "unary_unary", metadata=(("x-request-id", "given"),)))
    assert answer == {"x-request-id": "given", "traceparent": PARENT}


async def test_a_key_is_shown_to_the_door_alone(front: Service, back: Service) -> None:
    async with connect(f"127.0.0.1:{cast(Any, front).server.port}", key="am_canary") as channel:
        await _read(_start(channel, "unary_unary", metadata=FULL))
    assert front.seen[0][1].items() >= {**dict(FULL), "authorization": "Bearer am_canary"}.items()
    assert "authorization" not in back.seen[0][1]
    assert "canary" not in repr(ClientTls(b"ca", b"cert", b"canary"))
