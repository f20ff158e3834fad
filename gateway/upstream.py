"""Calls to the worker: its failures as our errors, and its streams read ahead into a bounded queue.

The store's failures are told as the worker's are. Of what a caller sends besides a request only its trace reaches them
(`agentmem.tracing`), and no credentials.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import errors, handlers
from agentmem.health import WRITES, reason
from agentmem.v1 import inference_pb2, inference_pb2_grpc
from gateway.callers import serves_admin
from gateway.discretion import without_directories

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

WORKER: Final = "inference worker"
STORE: Final = "cache store"
"""The processes behind a gateway, as callers are told of them."""


class UnaryCall(Awaitable[_T_co], Protocol[_T_co]):
    """The call object of an RPC with one response."""

    def cancel(self) -> bool:
        """Tell the worker to stop. May be called at any time."""


class StreamCall(AsyncIterable[_T_co], Protocol[_T_co]):
    """The call object of an RPC with a stream of responses."""

    def cancel(self) -> bool:
        """Tell the worker to stop. May be called at any time."""


def stub(
    channel: grpc.aio.Channel, method: MethodDescriptor, deserializer: Callable[[bytes], Any] | None = None
) -> Callable[..., Any]:
    """An RPC of the contract, to be called as its generated stub is. Without `deserializer` responses are bytes."""
    connect = getattr(channel, handlers.arity(method.client_streaming, method.server_streaming))
    call: Callable[..., Any] = connect(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=deserializer,
    )
    return call


def unreachable(peer: str = WORKER) -> errors.Unavailable:
    """What a caller is told where a process behind the gateway says nothing."""
    return errors.Unavailable(f"the {peer} cannot be reached; it may be starting again")


def failure(error: grpc.aio.AioRpcError, peer: str = WORKER) -> errors.AgentmemError:
    """The failure of a call to `peer` with its details, as the caller is told it, or the failure to reach it."""
    if errors.is_unreachable(error):
        return unreachable(peer)
    told = errors.from_rpc(error)
    if isinstance(told, errors.FailedPrecondition | errors.Unavailable) and not serves_admin():
        told.message = without_directories(told.message)  # a model that cannot be loaded says where it is
    return told


async def result(call: UnaryCall[_T]) -> _T:
    """The response of a unary call, cancelled if the caller goes away. Raises AgentmemError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise failure(error) from error
    finally:
        call.cancel()


@asynccontextmanager
async def read_ahead(call: StreamCall[_T], limit: int) -> AsyncIterator[AsyncIterator[_T]]:
    """The messages of a stream, at most `limit` of them waiting here. Iterating raises AgentmemError.

    Leaving the block cancels the call, whether the stream has ended or not.
    """
    queue: asyncio.Queue[_T | errors.AgentmemError | None] = asyncio.Queue(limit)
    pump = asyncio.create_task(_pump(call, queue))
    try:
        yield _drain(queue)
    finally:
        call.cancel()
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


@asynccontextmanager
async def generation(
    channel: grpc.aio.Channel, turn: inference_pb2.GenerateRequest, limit: int
) -> AsyncIterator[AsyncIterator[inference_pb2.GenerateResponse]]:
    """The events of a turn on the worker, as `read_ahead`; a stream that ends without `finished` raises Unavailable."""
    call: StreamCall[inference_pb2.GenerateResponse] = inference_pb2_grpc.InferenceServiceStub(channel).Generate(turn)
    async with read_ahead(call, limit) as events:
        yield _whole(events)


async def _whole(
    events: AsyncIterator[inference_pb2.GenerateResponse],
) -> AsyncIterator[inference_pb2.GenerateResponse]:
    finished = False
    async for event in events:
        finished = event.HasField("finished")
        yield event
    if not finished:
        raise errors.Unavailable("the inference worker ended the turn without finishing it")


async def _pump(call: StreamCall[_T], queue: "asyncio.Queue[_T | errors.AgentmemError | None]") -> None:
    end: errors.AgentmemError | None = unreachable()  # what a channel that is closed here says
    try:
        async for message in call:
            await queue.put(message)
        end = None
    except grpc.aio.AioRpcError as error:
        end = failure(error)
    except asyncio.CancelledError:  # by the reader, who has gone; or the call was cancelled here, and he may wait
        with suppress(asyncio.QueueFull):
            queue.put_nowait(end)
        raise
    await queue.put(end)


async def _drain(queue: "asyncio.Queue[_T | errors.AgentmemError | None]") -> AsyncIterator[_T]:
    while (message := await queue.get()) is not None:
        if isinstance(message, errors.AgentmemError):
            raise message
        yield message


async def write_problem(channel: grpc.aio.Channel, timeout: float) -> str:
    """Why the store cannot write ledgers now, asked live; empty if it can, or does not say."""
    call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=WRITES), timeout=timeout)
    try:
        answer = await call
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return ""
        return without_directories(await reason(call)) or f"the {STORE} cannot write"
    except grpc.aio.AioRpcError:  # whether it answers at all is asked elsewhere
        return ""


async def unready_reason(channel: grpc.aio.Channel, service: str, timeout: float, peer: str = WORKER) -> str:
    """Why `peer` does not serve `service` now, asked live; empty if it does."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the {peer} did not answer within {timeout:g} s"
        return failure(error, peer).message
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return f"the {peer} is {state}: it is loading, draining or broken"
