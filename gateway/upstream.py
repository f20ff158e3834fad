"""Calls to the worker and the store, and their failures as our errors.

Of what a caller sends besides a request only its trace reaches them (`agentmem.tracing`), and no credentials.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import errors
from agentmem.process import rpc
from agentmem.v1 import inference_pb2
from gateway.edge.authorization import without_directories
from gateway.edge.callers import serves_admin

WORKER: Final = "inference worker"
STORE: Final = "cache store"
"""The processes behind a gateway, as messages name them."""

_GENERATE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods_by_name["Generate"]

_T = TypeVar("_T")
UnaryCall: TypeAlias = grpc.aio.UnaryUnaryCall[Any, _T] | grpc.aio.StreamUnaryCall[Any, _T]
StreamCall: TypeAlias = grpc.aio.UnaryStreamCall[Any, _T]


def stub(
    channel: grpc.aio.Channel, method: MethodDescriptor, deserializer: Callable[[bytes], Any] | None = None
) -> Callable[..., Any]:
    """Return an RPC of the contract, called as its generated stub is. Without `deserializer` responses are bytes."""
    connect = getattr(channel, rpc.arity(method.client_streaming, method.server_streaming))
    call: Callable[..., Any] = connect(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=deserializer,
    )
    return call


def unreachable(peer: str = WORKER) -> errors.Unavailable:
    """Return the error for a process behind the gateway that does not answer."""
    return errors.Unavailable(f"the {peer} cannot be reached; it may be starting again")


def failure(error: grpc.aio.AioRpcError, peer: str = WORKER) -> errors.AgentmemError:
    """Return the failure of a call to `peer` with its details, redacted for the caller, or the failure to reach it."""
    if errors.is_unreachable(error):
        return unreachable(peer)
    ours = errors.from_rpc(error)
    if isinstance(ours, errors.FailedPrecondition | errors.Unavailable) and not serves_admin():
        ours.message = without_directories(ours.message)  # a model that cannot be loaded says where it is
    return ours


async def result(call: UnaryCall[_T]) -> _T:
    """Return the response of a unary call, cancelled if the caller goes away. Raises AgentmemError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise failure(error) from error
    except asyncio.CancelledError:
        if _caller_leaves():
            raise
        raise unreachable() from None
    finally:
        call.cancel()


async def messages(call: StreamCall[_T]) -> AsyncGenerator[_T, None]:
    """Yield the messages of a stream as they come; raises AgentmemError. Closing the iterator cancels the call.

    Nothing is read ahead: while a reader is slow, HTTP/2's flow control holds back the peer, which has its own bound.
    """
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise failure(error) from error
    except asyncio.CancelledError:
        if _caller_leaves():
            raise
        raise unreachable() from None
    finally:
        call.cancel()


def _caller_leaves() -> bool:
    """Return whether this task is cancelled; else it is its call that was, by its channel, which was closed here."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def generation(
    channel: grpc.aio.Channel, turn: inference_pb2.GenerateRequest
) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
    """Yield the events of a turn on the worker, as `messages`; a stream without `finished` raises Unavailable.

    With `finished` the turn is whole, and kept if it is to be: a worker that goes away behind it fails nothing, or the
    caller would have the turn again.
    """
    finished = False
    generate = stub(channel, _GENERATE, inference_pb2.GenerateResponse.FromString)  # A whole stub takes 0.3 ms.
    try:
        async with aclosing(messages(generate(turn))) as events:
            async for event in events:
                finished = finished or event.HasField("finished")
                yield event
    except errors.AgentmemError:
        if not finished:
            raise
    if not finished:
        raise errors.Unavailable("the inference worker ended the turn without finishing it")


async def unready_reason(channel: grpc.aio.Channel, service: str, timeout: float, peer: str = WORKER) -> str:
    """Return why `peer` does not serve `service` now, asked live; empty if it does."""
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
