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
from tests.agentmem.process.four_arities import ARITIES, NAME, Client, Service, raising, serving
from tests.agentmem.test_tracing import PARENT

FULL = (("x-request-id", "mine"), ("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "k=v"))


class Noting(Service):
    """Notes which request it serves, and with which metadata; then calls the same method `onward`, if it is set."""

    def __init__(self, onward: Client | None = None) -> None:
        super().__init__()
        self.seen: list[tuple[tracing.Trace | None, dict[str, str]]] = []
        self.later: list[asyncio.Task[tracing.Trace | None]] = []
        self.onward = onward

    async def answer(self, name: str, context: Any) -> Any:
        metadata = {name: str(value) for name, value in context.invocation_metadata()}
        self.seen.append((tracing.current(), metadata))
        self.later.append(asyncio.create_task(_later()))
        if self.onward is not None:
            await self.onward.read(self.onward.start(name))
        return await super().answer(name, context)


async def _later() -> tracing.Trace | None:
    await asyncio.sleep(0)
    return tracing.current()


async def returned(client: Client, arity: str, metadata: Any) -> dict[str, str]:
    call = client.start(arity, metadata=metadata)
    await client.read(call)
    return dict(await call.initial_metadata())


@pytest.fixture
async def back() -> Noting:
    return Noting()


@pytest.fixture
async def front(back: Noting) -> AsyncIterator[Noting]:
    async with serving(back) as onward:
        yield Noting(onward)


@pytest.fixture
async def client(front: Noting) -> AsyncIterator[Client]:
    async with serving(front, edge=True) as client:
        yield client


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_request_flows_to_the_back_and_its_id_returns(
    client: Client, front: Noting, back: Noting, arity: str
) -> None:
    assert await returned(client, arity, FULL) == {"x-request-id": "mine", "traceparent": PARENT}
    trace = tracing.Trace("mine", PARENT, "a=1", "k=v")
    for service in (front, back):
        ((seen, given),) = service.seen
        assert seen == trace
        assert given.items() >= dict(FULL).items()
        assert [await task for task in service.later] == [trace]


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_failed_call_has_its_id_too(
    client: Client, back: Noting, arity: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentmem.process.rpc")
    back.fault = raising(errors.NotFound("agent", "x"))
    call = client.start(arity, metadata=(("x-request-id", "failing"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert dict(await call.initial_metadata())["x-request-id"] == "failing"
    # The line follows the status: once the front has ended the call, it is written.
    await client.server.stop(5)
    lines = [record.fields for record in caplog.records if record.message == "answered"]  # type: ignore[attr-defined]
    assert [{**line, "ms": 0} for line in lines] == [{"method": f"/{NAME}/{arity}", "status": "NOT_FOUND", "ms": 0}], (
        "one line of the front's, and none of the back's, which is no door"
    )


class Gone:
    async def send_initial_metadata(self, _: object) -> None:
        raise asyncio.CancelledError

    def time_remaining(self) -> float | None:
        return None

    def code(self) -> int:
        return 0


async def test_who_leaves_before_the_first_byte_has_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentmem.process.rpc")
    service = Noting()

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
async def test_calls_at_the_same_time_are_not_mixed_up(client: Client, front: Noting, back: Noting, arity: str) -> None:
    names = [str(number) for number in range(50)]
    calls = [returned(client, arity, (("x-request-id", name),)) for name in names]
    answers = await asyncio.gather(*calls)
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
    client: Client, back: Noting, metadata: Any, expected: dict[str, str] | None
) -> None:
    answer = await returned(client, "unary_unary", metadata)
    ((_, given),) = back.seen
    if expected is None:  # all of it is good
        assert {name: given[name] for name, _ in metadata} == dict(metadata)
    else:
        assert given["x-request-id"] == answer["x-request-id"]
        assert answer == (expected or answer)
        assert len(answer["x-request-id"]) < 40
        assert not {"traceparent", "tracestate"} & given.keys()


async def test_more_metadata_than_a_call_may_have_is_refused(client: Client, front: Noting) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await returned(client, "unary_unary", (("baggage", "x" * MAX_METADATA_BYTES),))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert front.seen == []


async def test_what_a_call_is_given_goes_before_what_it_is_made_for(client: Client) -> None:
    with tracing.serving(tracing.Trace("outer", PARENT)):
        answer = await returned(client, "unary_unary", (("x-request-id", "given"),))
    assert answer == {"x-request-id": "given", "traceparent": PARENT}


async def test_a_key_is_shown_to_the_door_alone(client: Client, front: Noting, back: Noting) -> None:
    async with connect(f"127.0.0.1:{client.server.port}", key="am_canary") as channel:
        await returned(Client(channel, client.server), "unary_unary", FULL)
    assert front.seen[0][1].items() >= {**dict(FULL), "authorization": "Bearer am_canary"}.items()
    assert "authorization" not in back.seen[0][1]
    assert "canary" not in repr(ClientTls(b"ca", b"cert", b"canary"))
