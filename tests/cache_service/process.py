"""`python -m cache_service` as a process of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect


async def spawn(data: Path, *arguments: str, umask: int = -1) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cache_service",
        f"--data={data}",
        "--metrics=",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        umask=umask,
    )


@asynccontextmanager
async def ready(
    data: Path, *arguments: str, umask: int = -1
) -> AsyncIterator[tuple[asyncio.subprocess.Process, grpc.aio.Channel]]:
    """A store that serves, and a channel to it. It is killed in the end if it still runs."""
    process = await spawn(data, *arguments, umask=umask)
    try:
        assert process.stderr is not None
        async for line in process.stderr:  # asking for a socket that isn't there yet would cost a back-off
            if b" ready " in line:
                break
        async with connect(f"unix:{data}/run/store.sock") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="agentmem.v1.CacheStoreService")
            answer = await health.Check(request, wait_for_ready=True, timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            yield process, channel
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
