"""A cache store as a process of its own, and what Linux counts of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentmem.channels import connect
from agentmem.v1 import agent_pb2_grpc, cache_store_pb2_grpc


@dataclass(frozen=True)
class StoreProcess:
    """A store that serves `data`; `ready_seconds` passed from its start until it did."""

    pid: int
    data: Path
    ready_seconds: float
    cache: cache_store_pb2_grpc.CacheStoreServiceAsyncStub
    agents: agent_pb2_grpc.AgentServiceAsyncStub

    def resident_bytes(self) -> int:
        """Memory that it has now."""
        return _status(self.pid, "VmRSS")

    def peak_bytes(self) -> int:
        """The most memory that it had since `forget_peak`."""
        return _status(self.pid, "VmHWM")

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def written_bytes(self) -> int:
        """What it has sent to the disk so far."""
        return written_bytes(self.pid)


def written_bytes(pid: int | str = "self") -> int:
    """What a process has sent to the disk so far: `write_bytes` of /proc/PID/io, whole pages."""
    return _number(Path(f"/proc/{pid}/io"), "write_bytes")


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[StoreProcess]:
    """Start a store, wait until it is ready, and end it by SIGTERM."""
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "cache_service", f"--data={data}", "--metrics="),
        stderr=asyncio.subprocess.PIPE,
    )
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
            yield StoreProcess(
                process.pid,
                data,
                ready,
                cache_store_pb2_grpc.CacheStoreServiceStub(channel),
                agent_pb2_grpc.AgentServiceStub(channel),
            )
    finally:
        process.terminate()
        await process.wait()
    await reader


def _status(pid: int, name: str) -> int:
    return _number(Path(f"/proc/{pid}/status"), name) * 1024


def _number(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{path} has no {name}: this benchmark needs Linux")
