"""What all RPCs at the gRPC door have in common, forwarded or served here: they are counted, and nobody stalls them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from agentmem import errors
from gateway.metrics import GatewayMetrics

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]

_GENERATIONS = frozenset({"Generate", "Prefill"})


async def write_in_time(context: _Context, message: Any, stall_limit: float) -> None:
    """Send a message of a stream. Raises ResourceExhausted where its reader takes nothing for `stall_limit` seconds."""
    try:
        async with asyncio.timeout(stall_limit):
            await context.write(message)
    except TimeoutError:
        raise errors.ResourceExhausted(f"the stream was aborted: nothing was read for {stall_limit:g} s") from None


@contextmanager
def counted(metrics: GatewayMetrics, method: MethodDescriptor) -> Iterator[None]:
    """Count an RPC by the status that it ends with; a generation also as one that runs, and by how long it takes."""
    generation = method.name in _GENERATIONS
    began = time.monotonic()
    code = grpc.StatusCode.OK
    if generation:
        metrics.generation_began("grpc")
    try:
        yield
    except errors.AgentmemError as error:
        code = error.code
        raise
    except (asyncio.CancelledError, GeneratorExit):
        code = grpc.StatusCode.CANCELLED
        raise
    except BaseException:
        code = grpc.StatusCode.INTERNAL
        raise
    finally:
        metrics.rpc_ended(method.containing_service.full_name, method.name, code.name)
        if generation:
            metrics.generation_ended("grpc", time.monotonic() - began)
