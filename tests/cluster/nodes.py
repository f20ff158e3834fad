"""Nodes as real processes: a store, a scripted worker, and maybe a gateway, to be stopped, killed, started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, Signals

from tests.system.forked import Forked
from tests.system.stack import START_SECONDS, Client, free_port, serving

MODEL = "scripted"


class Node:
    """One node's processes over a directory of its own, which `destroy` removes.

    `environment` is what theirs has besides; a library to preload takes effect, since they are started by name then.
    With `gateway_flags` it has a gateway, too.
    """

    def __init__(
        self,
        store_flags: tuple[str, ...] = (),
        worker_flags: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        worker: str = "benchmarks.cluster.scripted_worker",
        gateway_flags: tuple[str, ...] = (),
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="node-", dir="/tmp"))
        self.run = self.root / "run"
        self._environment = environment or {}
        self._commands = {
            "store": ("cache_service", f"--data={self.root}/data", f"--run-dir={self.run}", "--metrics=", *store_flags),
            "worker": (worker, f"--run-dir={self.run}", *worker_flags),
        }
        self.doors = [f"unix:{self.run}/worker.sock"]
        """Where turns are asked for: the worker, and the gateway."""
        if gateway_flags:
            self.doors.append(f"127.0.0.1:{free_port()}")
            doors = (f"--http=127.0.0.1:{free_port()}", f"--grpc={self.doors[1]}", "--metrics=")
            self._commands["gateway"] = ("gateway", f"--run-dir={self.run}", *doors, *gateway_flags)
        self.processes: dict[str, Forked | subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        """Start processes (default: all) without waiting."""
        for name in names or tuple(self._commands):
            self.processes[name] = self._started(self._commands[name], self.root / f"{name}.log")

    def _started(self, command: tuple[str, ...], log: Path) -> Forked | subprocess.Popen[bytes]:
        log.touch()
        environment = {**os.environ, **self._environment}
        if "LD_PRELOAD" not in self._environment:
            return Forked(command, log, environment)
        with log.open("ab") as output:
            return subprocess.Popen((sys.executable, "-m", *command), stdout=output, stderr=output, env=environment)

    async def ready(self) -> None:
        """Wait until turns can be asked for. Raises AssertionError with a log where a process has ended."""
        end = time.monotonic() + START_SECONDS
        while not all([await serving(door) for door in self.doors]):
            for name, process in self.processes.items():
                assert process.poll() is None and time.monotonic() < end, (self.root / f"{name}.log").read_text()
            await asyncio.sleep(0.02)

    @property
    def store(self) -> str:
        """Where the store serves."""
        return f"unix:{self.run}/store.sock"

    def signal(self, number: Signals, *names: str) -> None:
        """Send a signal to processes (default: all)."""
        for name in names or tuple(self.processes):
            self.processes[name].send_signal(number)

    def kill(self, *names: str) -> None:
        """SIGKILL processes (default: all) and wait for their end."""
        self.end(SIGKILL, *names)

    def end(self, number: Signals, *names: str) -> dict[str, int]:
        """End processes (default: all), running or stopped; their exit statuses."""
        names = names or tuple(self.processes)
        self.signal(number, *names)
        self.signal(SIGCONT, *names)
        return {name: self.processes.pop(name).wait(30) for name in names}

    def destroy(self) -> None:
        """Kill what runs, and remove all files."""
        self.kill()
        shutil.rmtree(self.root)

    @asynccontextmanager
    async def client(self, door: int = 0) -> AsyncIterator[Client]:
        """A client of one of its doors."""
        client = Client(self.doors[door], MODEL)
        try:
            yield client
        finally:
            await client.close()
