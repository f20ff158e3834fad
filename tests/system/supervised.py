"""`agentmem up` with its three services, whose processes can be killed, stopped and ended by name."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import psutil

from tests import blas
from tests.system.stack import Stack, free_port

MODULES = {"store": "cache_service", "worker": "inference_service", "gateway": "gateway"}
_MODULE = 5
"""Where a child's command line names its module: python -m agentmem.process.parent FD GRACE MODULE …"""


class Supervised(Stack):
    def __init__(self, model: str, **settings: str) -> None:
        """`settings` are of services, as the environment has them: AGENTMEM_STORE_NAMESPACE_BYTES="1000"."""
        super().__init__(model)
        gateway = free_port(3)
        self.ports |= {"gateway": gateway, "worker": gateway + 1, "store": gateway + 2}
        self._environment = {blas.VARIABLE: "1", "AGENTMEM_WORKER_QUALITY_CHECK": "false", **settings}

    def start(self, *_: str) -> None:
        self._share_measured()
        with (self.root / "up.log").open("ab") as output:
            self.processes["up"] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gateway.cli.main", "up", "--model", self.model, "--grace", "5"),
                    *("--data", str(self.data), "--run-dir", str(self.run), "--log-format", "json"),
                    *("--http", self._address("http"), "--grpc", self._address("grpc")),
                    *("--metrics", self._address("gateway")),
                ],
                stdout=output,
                stderr=output,
                env={**os.environ, **self._environment},
            )

    async def ready(self, *_: str) -> None:
        await self._wait(self.says_ready, "up")

    async def says_ready(self) -> bool:
        async with httpx.AsyncClient() as http:
            with suppress(httpx.TransportError):
                return (await http.get(f"{self.url}/readyz", timeout=2)).status_code == 200
        return False

    def service(self, name: str) -> psutil.Process:
        """A service's present process. Raises KeyError where it is not running."""
        for child in psutil.Process(self.processes["up"].pid).children():
            with suppress(psutil.NoSuchProcess, IndexError):
                if child.cmdline()[_MODULE] == MODULES[name]:
                    return child
        raise KeyError(name)

    async def signal(self, *names: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to services, and wait for their end where it ends them."""
        services = [self.service(name) for name in names]
        for service in services:
            service.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            await asyncio.to_thread(psutil.wait_procs, services, 30)

    async def destroy(self) -> None:
        """End `agentmem up` in order, and remove the files."""
        if (up := self.processes.get("up")) is not None and up.poll() is None:
            with suppress(KeyError):
                for name in MODULES:
                    self.service(name).send_signal(signal.SIGCONT)
            up.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(up.wait, 40)
        await super().destroy()


class Watched:
    """The answers of /readyz, with the moments at which they changed."""

    def __init__(self, stack: Supervised) -> None:
        self._stack = stack
        self.changes: list[tuple[float, bool]] = []

    async def watch(self) -> None:
        """Ask ten times a second."""
        while True:
            ready = await self._stack.says_ready()
            if not self.changes or self.changes[-1][1] != ready:
                self.changes.append((time.monotonic(), ready))
            await asyncio.sleep(0.1)

    async def until(self, ready: bool, since: float, within: float) -> float:
        """Seconds after `since` at which it said `ready`, at once or later."""
        async with asyncio.timeout(within):
            while True:
                before = [said for at, said in self.changes if at < since]
                if before and before[-1] == ready:
                    return 0.0
                for at, said in self.changes:
                    if at >= since and said == ready:
                        return at - since
                await asyncio.sleep(0.02)


@asynccontextmanager
async def supervised(model: str = "demo", **settings: str) -> AsyncIterator[Supervised]:
    stack = Supervised(model, **settings)
    try:
        await stack.up()
        yield stack
    except BaseException:
        sys.stderr.write((stack.root / "up.log").read_text(errors="replace")[-8000:])
        raise
    finally:
        await stack.destroy()
