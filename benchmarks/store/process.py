"""A cache store as a process of its own, and what Linux counts of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentmem.channels import connect
from agentmem.v1 import agent_pb2_grpc, cache_store_pb2_grpc
from benchmarks.nodes import Node


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
        return _number(self.pid, "status", "VmHWM") * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def written_bytes(pid: int | str = "self") -> int:
    """Bytes that a process has sent to the disk so far, in whole pages."""
    return _number(pid, "io", "write_bytes")


@asynccontextmanager
async def serving(
    data: Path | None = None, flags: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> AsyncIterator[StoreProcess]:
    """Start a store, over a new directory where none is given. Raises RuntimeError."""
    node = Node(flags, environment=environment, worker="", data=data)
    try:
        started = time.perf_counter()
        node.start()
        await node.ready()
        ready = time.perf_counter() - started
        async with connect(node.store) as channel:
            cache = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
            agents = agent_pb2_grpc.AgentServiceStub(channel)
            yield StoreProcess(node.processes["store"].pid, ready, cache, agents)
        await asyncio.to_thread(node.leave)
    finally:
        node.destroy()


def _number(pid: int | str, file: str, name: str) -> int:
    path = Path(f"/proc/{pid}/{file}")
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{path} has no {name}: this benchmark needs Linux")
