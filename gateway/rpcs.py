"""What RPCs at the gRPC door have in common, forwarded or served here: nobody stalls them; generations are counted."""

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
def generation(metrics: GatewayMetrics, method: MethodDescriptor) -> Iterator[None]:
    """Count an RPC that generates as one that runs, and by how long it takes; the server counts all RPCs."""
    if method.name not in _GENERATIONS:
        yield
        return
    began = time.monotonic()
    metrics.generation_began("grpc")
    try:
        yield
    finally:
        metrics.generation_ended("grpc", time.monotonic() - began)
