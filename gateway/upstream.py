"""Calls to worker and store. Of what a caller sends besides a request only its trace reaches them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import errors
from agentmem.process.health import reason
from agentmem.rpcs import Rpc, rpc_of
from agentmem.v1 import inference_pb2, model_pb2
from agentmem.v1.model_pb2_grpc import ModelServiceStub
from gateway.api.reports import load_line
from gateway.edge.authorization import redact, without_directories
from gateway.edge.callers import serves_admin

WORKER: Final = "inference worker"
STORE: Final = "cache store"
"""The processes that a gateway calls, as messages name them."""

WORKER_SERVICE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name


class Unreachable(errors.Unavailable):
    """A process did not answer, which may have done what it was asked."""


def unreachable(peer: str = WORKER) -> Unreachable:
    return Unreachable(f"the {peer} cannot be reached; it may be starting again")


def failure(error: grpc.aio.AioRpcError, peer: str = WORKER) -> errors.AgentmemError:
    """Return the call's failure, redacted for the caller, or the failure to reach `peer`."""
    if errors.is_unreachable(error):
        return unreachable(peer)
    ours = errors.from_rpc(error)
    if isinstance(ours, errors.FailedPrecondition | errors.Unavailable) and not serves_admin():
        ours.message = without_directories(ours.message)  # a model that cannot be loaded says where it is
    return ours


@dataclass(frozen=True)
class ChannelWorker:
    """The Worker over a channel. Its answers are redacted for the caller, or bytes where they are not `parsed`.

    Nothing is read ahead: while a reader is slow, HTTP/2's flow control holds back the peer.
    """

    channel: grpc.aio.Channel
    parsed: bool = True

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        answer = await _answer(self._method(rpc_of(request))(request, timeout=timeout))
        if self.parsed:
            redact(answer)
        return answer

    async def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        call = self._method(rpc_of(request))(request, timeout=timeout)
        with _ending(call):
            async for message in call:
                yield message

    async def upload(self, rpc: Rpc, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        call = self._method(rpc)(timeout=timeout)
        try:
            async for request in requests:
                await call.write(request)
            await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass  # the worker has ended the call, and its status says why
        except BaseException:
            call.cancel()
            raise
        return await _answer(call)

    def _method(self, rpc: Rpc) -> Any:
        return rpc.on(self.channel, parsed=self.parsed)


async def _answer(call: Any) -> Any:
    with _ending(call):
        return await call


@contextmanager
def _ending(call: Any) -> Iterator[None]:
    """Cancel a call at the end of the block. Raises AgentmemError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise failure(error) from error
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise unreachable() from None  # the call was cancelled by its channel, which was closed here, and not this task
    finally:
        call.cancel()


class Readiness(NamedTuple):
    """Why a process does not serve, "" if it does, and the model for which the worker's start waits."""

    reason: str = ""
    loading: model_pb2.Model | None = None


async def readiness(channel: grpc.aio.Channel, service: str, timeout: float, peer: str = WORKER) -> Readiness:
    """Ask live whether `peer` serves `service`."""
    call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    try:
        answer = await call
        why = await reason(call)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Readiness(f"the {peer} did not answer within {timeout:g} s")
        return Readiness(failure(error, peer).message)
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return Readiness()
    if service == WORKER_SERVICE and (model := await _loading(channel, timeout)) is not None:
        return Readiness(load_line(model), model)
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return Readiness(f"the {peer} is {state}: {why}" if why else f"the {peer} is {state}")


async def _loading(channel: grpc.aio.Channel, timeout: float) -> model_pb2.Model | None:
    call = ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest(page_size=1), timeout=timeout)
    try:
        default = (await call).models[0]  # GetModel would ask the hub
    except grpc.aio.AioRpcError:
        return None
    return default if default.HasField("progress") else None
