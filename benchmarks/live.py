"""A live stack for the demo and the benchmarks: `agentmem up` with a model, whose services can be killed."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import layout
from agentmem.channels import connect
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    types_pb2,
)
from benchmarks import ports, turns
from benchmarks.models import model_name
from benchmarks.turns import Turn
from gateway.cli.live_line import INTERVAL, LiveLine
from gateway.cli.up.readiness import start_line

START_SECONDS, END_SECONDS = 240, 60
_PROBE_SECONDS = 2.0
MODULES = {"store": "cache_service", "worker": "inference_service", "gateway": "gateway"}


class LiveStack:
    def __init__(self, process: asyncio.subprocess.Process, root: Path, addresses: dict[str, str], model: str) -> None:
        self._process = process
        self.root = root
        self.addresses = addresses
        self.model = model
        self._channel = connect(addresses["grpc"])
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def serves(self) -> bool:
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def describe_model(self) -> model_pb2.Model:
        return (await self._models.GetModel(model_pb2.GetModelRequest(model_id=self.model))).model

    async def ask(self, agent: str, max_tokens: int = 40, **arguments: Any) -> Turn:
        """Raises AioRpcError."""
        return await turns.ask(self._inference, self.model, agent, max_tokens=max_tokens, **arguments)

    async def agent(self, agent: str) -> agent_pb2.Agent:
        return (await self._agents.GetAgent(agent_pb2.GetAgentRequest(key=self._key(agent)))).agent

    async def fork(self, source: str, agent: str) -> None:
        await self._agents.ForkAgent(agent_pb2.ForkAgentRequest(key=self._key(source), new_agent_id=agent))

    async def evict(self, agent: str) -> None:
        """Evict the agent's KV from memory once all of it is written."""
        await self.on_disk(agent)
        await self._agents.EvictAgent(agent_pb2.EvictAgentRequest(key=self._key(agent), tier=types_pb2.TIER_HOT))

    async def on_disk(self, agent: str) -> agent_pb2.Agent:
        """Wait until all KV of an agent was written: blocks follow a turn off the request path."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                described = await self.agent(agent)
                if described.warm_tokens == described.tokens:
                    return described
                await asyncio.sleep(0.02)

    async def kill(self, *services: str) -> float:
        before = {service: self.process(service) for service in services}
        started = time.monotonic()
        for process in before.values():
            process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(START_SECONDS):
            while not all(map(_ended, before.values())):
                await asyncio.sleep(0.01)
            while not await self._ready():
                await asyncio.sleep(0.02)
        return time.monotonic() - started

    def _key(self, agent: str) -> types_pb2.AgentKey:
        return types_pb2.AgentKey(agent_id=agent, model_id=self.model)

    async def _ready(self) -> bool:
        try:
            await self._agents.ListAgents(agent_pb2.ListAgentsRequest(page_size=1), timeout=1)
            model = await self.describe_model()
        except grpc.aio.AioRpcError:
            return False
        return model.state == model_pb2.MODEL_STATE_LOADED

    def process(self, service: str) -> psutil.Process:
        children = psutil.Process(self._process.pid).children(recursive=True)
        return next(child for child in children if MODULES[service] in child.cmdline())

    async def die(self) -> None:
        """SIGKILL `agentmem up` first, so that nothing is started again."""
        await self._channel.close(None)
        await kill_all(self._process)

    async def close(self) -> None:
        await self._channel.close(None)
        await end(self._process)


async def end(process: asyncio.subprocess.Process) -> None:
    """Raises TimeoutError where only SIGKILL ended them."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        await kill_all(process)
        raise


async def kill_all(process: asyncio.subprocess.Process) -> None:
    try:
        supervisor = psutil.Process(process.pid)
        processes = [supervisor, *supervisor.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    await process.wait()
    async with asyncio.timeout(START_SECONDS):
        while not all(map(_ended, processes)):
            await asyncio.sleep(0.01)


def _ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def launch(
    root: Path,
    model: str = "demo",
    environment: Mapping[str, str] | None = None,
    metrics: str = "",
) -> asyncio.subprocess.Process:
    with (root / "up.log").open("wb") as output:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli.main", "up", "--model", model, "--data", str(root / "data")),
            *("--run-dir", str(root / "run"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", metrics),
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )


async def ready(process: asyncio.subprocess.Process, root: Path, model: str) -> LiveStack:
    """Wait until what was launched serves. Raises RuntimeError."""
    log = root / "up.log"
    await _until(process, root, lambda: b"Ready." in log.read_bytes())
    return _stack(process, root, model)


async def serving(process: asyncio.subprocess.Process, root: Path, model: str) -> LiveStack:
    await _until(process, root, (root / "run" / layout.GATEWAY_FILE).exists)
    stack = _stack(process, root, model)
    async with asyncio.timeout(START_SECONDS):
        while not await stack.serves():
            _check_runs(process, root)
            await asyncio.sleep(0.05)  # The gateway's answers take time from a worker that loads.
    return stack


async def _until(process: asyncio.subprocess.Process, root: Path, reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not reached():
            _check_runs(process, root)
            await asyncio.sleep(0.01)


def _check_runs(process: asyncio.subprocess.Process, root: Path) -> None:
    if process.returncode is not None:
        log = (root / "up.log").read_text(errors="replace")
        raise RuntimeError(f"agentmem up did not start:\n{log[-3000:]}")


def _stack(process: asyncio.subprocess.Process, root: Path, model: str) -> LiveStack:
    addresses = json.loads((root / "run" / layout.GATEWAY_FILE).read_text())
    return LiveStack(process, root, addresses, model_name(model))


@asynccontextmanager
async def _shown(root: Path) -> AsyncIterator[None]:
    """Show at a terminal what the start waits for."""

    async def follow() -> None:
        with LiveLine(sys.stderr) as line:
            while True:
                line.show(await start_line(root / "run", _PROBE_SECONDS))
                await asyncio.sleep(INTERVAL)

    following = asyncio.create_task(follow()) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})


@asynccontextmanager
async def running(
    model: str = "demo", show: bool = False, environment: Mapping[str, str] | None = None, metrics: bool = False
) -> AsyncIterator[LiveStack]:
    """`agentmem up` over an empty data directory, which is removed afterwards."""
    with scratch() as root:
        address = f"127.0.0.1:{ports.free_ports(3)}" if metrics else ""
        process = await launch(root, model, environment, address)
        stack = None
        try:
            async with _shown(root):
                stack = await ready(process, root, model)
            if show:
                lines = (root / "up.log").read_text().splitlines()
                sys.stdout.write("".join(f"  {line}\n" for line in lines if "OpenBLAS" in line))
            yield stack
        finally:
            await (stack.close() if stack is not None else end(process))


@contextmanager
def scratch() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="agentmem-", dir="/tmp"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
