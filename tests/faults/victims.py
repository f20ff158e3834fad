"""Many stores in one child process, each with its own directory and socket, so that one SIGKILL ends them all.

Starting an interpreter takes longer than anything that is tested here. A store that has come to the point where it
shall die is held there by the shim, others are started beside it, and then the process is killed: each directory is
as a SIGKILL at its own point leaves it. `main` is the child: orders as JSON lines on stdin, answers likewise on stdout.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from agentmem.channels import connect
from agentmem.process.server import GrpcServer
from agentmem.v1 import agent_pb2_grpc, cache_store_pb2_grpc
from cache_service.ledger import database
from cache_service.store import Store
from cache_service.tiers.limits import DiskLimits
from tests.faults import mistakes
from tests.faults.shim import SLOTS, Control


@dataclass(frozen=True)
class Victim:
    number: int
    data: Path
    cache: cache_store_pb2_grpc.CacheStoreServiceAsyncStub
    agents: agent_pb2_grpc.AgentServiceAsyncStub


class Victims:
    def __init__(self, process: asyncio.subprocess.Process, control: Control) -> None:
        self._process = process
        self._control = control
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._channels: list[grpc.aio.Channel] = []
        self._reading = asyncio.create_task(self._read())

    async def open(self, number: int, data: Path, limits: DiskLimits) -> str:
        """Start a store on `data`, which is below the slot's directory; "" or why it would not start."""
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        order = {"number": number, "data": str(data), "socket": self._socket(number), "limits": vars(limits)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        problem: str = await answer
        return problem

    def victim(self, number: int, data: Path) -> Victim:
        channel = connect(self._socket(number))
        self._channels.append(channel)
        cache, agents = cache_store_pb2_grpc.CacheStoreServiceStub, agent_pb2_grpc.AgentServiceStub
        return Victim(number, data, cache(channel), agents(channel))

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading
        for channel in self._channels:
            await channel.close(None)

    def _socket(self, number: int) -> str:
        return f"unix:{self._control.base}/{number}.sock"

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, problem = json.loads(line)
            self._answers[number].set_result(problem)


@asynccontextmanager
async def victims(control: Control, library: Path, *flags: str) -> AsyncIterator[Victims]:
    with (control.base / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.victims", *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=control.environment(library),
        )
    child = Victims(process, control)
    try:
        yield child
    finally:
        await child.kill()


_SERVERS: list[GrpcServer] = []
"""Servers in use; one that nobody refers to stops."""


async def main(flags: list[str]) -> None:
    """Serve until killed. Flags: names of mistakes to build in; "checkpoint": bring the WAL home with each commit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for flag in flags:
        if flag == "checkpoint":
            database._PRAGMAS = (*database._PRAGMAS, "wal_autocheckpoint = 1")
        else:
            mistakes.MISTAKES[flag]()
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(SLOTS)
    )  # a start that is stopped keeps its thread
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    starting: set[asyncio.Task[None]] = set()
    async for line in reader:
        task = asyncio.create_task(_start(json.loads(line)))
        starting.add(task)
        task.add_done_callback(starting.discard)


async def _start(order: dict[str, Any]) -> None:
    problem = ""
    try:
        store = await asyncio.to_thread(Store, Path(order["data"]), CollectorRegistry(), DiskLimits(**order["limits"]))
        server = GrpcServer(order["socket"], store.services)
        await server.start()
        _SERVERS.append(server)
    except Exception as error:  # noqa: BLE001 - told to the test
        problem = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps([order["number"], problem]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
