"""A store with a worker, and maybe a gateway, as processes that are ended and started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, Signals
from typing import Final, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect
from benchmarks.ports import free_ports
from gateway.cli.up.openblas import preload_here

SCRIPTED: Final = "benchmarks.cluster.scripted_worker"
HOST: Final = "127.0.0.1"
START_SECONDS: Final = 240.0
END_SECONDS: Final = 30.0


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int) -> None: ...


class Node:
    """Processes over a directory of their own; `worker` is a module, or "". With `gateway_flags` there is a gateway at
    `ports` and the next. `data` is the store's directory, where it is another one."""

    def __init__(
        self,
        store_flags: tuple[str, ...] = (),
        worker_flags: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        worker: str = SCRIPTED,
        gateway_flags: tuple[str, ...] = (),
        ports: int = 0,
        data: Path | None = None,
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="node-", dir="/tmp"))
        self.run = self.root / "run"
        data = data or self.root / "data"
        own = {"AGENTMEM_STORE_METRICS": "", "AGENTMEM_WORKER_METRICS": "", "AGENTMEM_WORKER_DATA": str(data)}
        self.environment = {**own, **(environment or {})}
        self._commands = {"store": ("cache_service", f"--data={data}", f"--run-dir={self.run}", *store_flags)}
        self.doors = [f"unix:{self.run}/worker.sock" if worker else self.store]
        """Where turns are asked for: worker and gateway, or else the store."""
        if worker:
            self._commands["worker"] = (worker, f"--run-dir={self.run}", *worker_flags)
        if gateway_flags:
            ports = ports or free_ports(2)
            self.doors.append(f"{HOST}:{ports}")
            self.http = f"http://{HOST}:{ports + 1}"
            doors = (f"--http={HOST}:{ports + 1}", f"--grpc={self.doors[1]}", "--metrics=")
            self._commands["gateway"] = ("gateway", f"--run-dir={self.run}", *doors, *gateway_flags)
        self.processes: dict[str, Process] = {}

    def start(self, *names: str) -> None:
        for name in names or tuple(self._commands):
            log = self.root / f"{name}.log"
            log.touch()
            self.processes[name] = self.started(self._commands[name], log, {**os.environ, **self.environment})

    def started(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Process:
        with log.open("ab") as output:
            return subprocess.Popen((sys.executable, "-m", *command), stdout=output, stderr=output, env=environment)

    async def ready(self) -> None:
        """Wait until turns can be asked for. Raises RuntimeError."""
        end = time.monotonic() + START_SECONDS
        while not all([await serving(door) for door in self.doors]):
            for name, process in self.processes.items():
                if process.poll() is not None or time.monotonic() > end:
                    log = (self.root / f"{name}.log").read_text(errors="replace")
                    raise RuntimeError(f"a node is not ready, its {name} wrote:\n{log[-3000:]}")
            await asyncio.sleep(0.02)

    @property
    def store(self) -> str:
        return f"unix:{self.run}/store.sock"

    def signal(self, number: Signals, *names: str) -> None:
        for name in names or tuple(self.processes):
            self.processes[name].send_signal(number)

    def kill(self, *names: str) -> None:
        self.end(SIGKILL, *names)

    def leave(self) -> None:
        """SIGTERM to the gateway first, the store last."""
        for name in reversed(tuple(self.processes)):
            self.end(SIGTERM, name)

    def end(self, number: Signals, *names: str) -> dict[str, int]:
        names = names or tuple(self.processes)
        self.signal(number, *names)
        self.signal(SIGCONT, *names)
        return {name: self.processes.pop(name).wait(END_SECONDS) for name in names}

    def destroy(self) -> None:
        self.kill()
        shutil.rmtree(self.root)


@asynccontextmanager
async def worker(models: Sequence[str], *flags: str) -> AsyncIterator[Node]:
    """A store and a worker of these NAME=DIRECTORY, the first of them the default; with the BLAS of `agentmem up`."""
    named = (f"--model={model}" for model in models)
    node = Node((), (*named, *flags), preload_here().environment, "inference_service")
    try:
        node.start()
        await node.ready()
        yield node
    finally:
        node.destroy()


async def serving(target: str) -> bool:
    async with connect(target) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
