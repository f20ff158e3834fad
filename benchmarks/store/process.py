"""A cache store as a process of its own, and what Linux counts of it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentmem.channels import connect
from agentmem.v1 import agent_pb2_grpc, cache_store_pb2_grpc


@dataclass(frozen=True)
class StoreProcess:
    """A store that serves; `ready_seconds` passed from its start until it did."""

    pid: int
    ready_seconds: float
    cache: cache_store_pb2_grpc.CacheStoreServiceAsyncStub
    agents: agent_pb2_grpc.AgentServiceAsyncStub

    def resident_bytes(self) -> int:
        return _number(self.pid, "status", "VmRSS") * 1024

    def peak_bytes(self) -> int:
        """The most memory that it had since `forget_peak`."""
        return _number(self.pid, "status", "VmHWM") * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def written_bytes(pid: int | str = "self") -> int:
    """Bytes that a process has sent to the disk so far, in whole pages."""
    return _number(pid, "io", "write_bytes")


@asynccontextmanager
async def serving(
    data: Path, flags: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> AsyncIterator[StoreProcess]:
    """Start a store until it is ready. Raises RuntimeError."""
    started = time.perf_counter()
    command = (sys.executable, "-m", "cache_service", f"--data={data}", "--metrics=", *flags)
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, env={**os.environ, **(environment or {})})
    try:
        assert process.stderr is not None
        lines = []
        async for line in process.stderr:
            lines.append(line)
            if b" ready " in line:
                break
        else:
            raise RuntimeError(b"".join(lines).decode())
        ready = time.perf_counter() - started
        reader = asyncio.create_task(process.stderr.read())  # or the pipe fills up
        async with connect(f"unix:{data}/run/store.sock") as channel:
            cache = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
            yield StoreProcess(process.pid, ready, cache, agent_pb2_grpc.AgentServiceStub(channel))
    finally:
        process.terminate()
        await process.wait()
    await reader


def _number(pid: int | str, file: str, name: str) -> int:
    path = Path(f"/proc/{pid}/{file}")
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{path} has no {name}: this benchmark needs Linux")
