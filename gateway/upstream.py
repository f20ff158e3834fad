"""Calls to worker and store. Of what a caller sends besides a request only its trace reaches them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import errors
from agentmem.rpcs import Rpc, rpc_of
from gateway.edge.authorization import redact, without_directories
from gateway.edge.callers import serves_admin

WORKER: Final = "inference worker"
STORE: Final = "cache store"
"""The processes behind a gateway, as messages name them."""


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


async def unready_reason(channel: grpc.aio.Channel, service: str, timeout: float, peer: str = WORKER) -> str:
    """Return why `peer` does not serve `service`, asked live; empty if it does."""
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
