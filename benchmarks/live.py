"""A live stack for the demo and the benchmarks: `agentmem up` with the demo model, whose services can be killed."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from agentmem.channels import closing_stream, connect
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    types_pb2,
)

START_SECONDS = 120
MODULES = {"store": "cache_service", "worker": "inference_service", "gateway": "gateway"}


@dataclass(frozen=True)
class Answer:
    """One turn as its client saw it. Seconds are the client's own clock, from sending to the first text."""

    text: str
    match: str
    tier: str
    reused_tokens: int
    prompt_tokens: int
    seconds_to_first_token: float
    load_seconds: float
    prefill_seconds: float
    version: int


class LiveStack:
    """A running stack. `kill` ends services by SIGKILL; `agentmem up` starts them again by itself."""

    def __init__(self, process: asyncio.subprocess.Process, root: Path, addresses: dict[str, str], model: str) -> None:
        self._process = process
        self.root = root
        self.addresses = addresses
        self.model = model
        self._channel = connect(addresses["grpc"])
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)

    async def describe_model(self) -> model_pb2.Model:
        """The model that serves."""
        return (await self._models.GetModel(model_pb2.GetModelRequest(model_id=self.model))).model

    async def ask(self, agent: str, max_tokens: int = 40, **arguments: object) -> Answer:
        """One turn. `arguments` are fields of GenerateRequest. Raises AioRpcError."""
        key = types_pb2.AgentKey(agent_id=agent, model_id=self.model)
        request = inference_pb2.GenerateRequest(key=key, max_tokens=max_tokens, **arguments)  # type: ignore[arg-type]
        sent, first, text = time.monotonic(), 0.0, ""
        started, finished = inference_pb2.Started(), inference_pb2.Finished()
        async with closing_stream(self._inference.Generate(request)) as events:
            async for event in events:
                if event.HasField("started"):
                    started = event.started
                elif event.HasField("delta"):
                    first = first or time.monotonic() - sent
                    text += event.delta.text
                else:
                    finished = event.finished
        cached = started.cache.cached
        return Answer(
            text=text,
            match=types_pb2.Match.Name(started.cache.match).removeprefix("MATCH_"),
            tier=types_pb2.Tier.Name(cached[0].tier).removeprefix("TIER_").lower() if cached else "none",
            reused_tokens=sum(part.tokens for part in cached),
            prompt_tokens=started.cache.prompt_tokens,
            seconds_to_first_token=first,
            load_seconds=started.load.ToTimedelta().total_seconds(),
            prefill_seconds=finished.timings.prefill.ToTimedelta().total_seconds(),
            version=finished.version.version,
        )

    async def agent(self, agent: str) -> agent_pb2.Agent:
        """An agent's description."""
        key = types_pb2.AgentKey(agent_id=agent, model_id=self.model)
        return (await self._agents.GetAgent(agent_pb2.GetAgentRequest(key=key))).agent

    async def on_disk(self, agent: str) -> agent_pb2.Agent:
        """Wait until all KV of an agent was written: blocks follow a turn off the request path."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                described = await self.agent(agent)
                if described.warm_tokens == described.tokens:
                    return described
                await asyncio.sleep(0.02)

    async def kill(self, *services: str) -> float:
        """SIGKILL services and wait until they serve again; the seconds that it took."""
        before = {service: self.process(service) for service in services}
        started = time.monotonic()
        for process in before.values():
            process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(START_SECONDS):
            while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in before.values()):
                await asyncio.sleep(0.01)
            while not await self._ready():
                await asyncio.sleep(0.02)
        return time.monotonic() - started

    async def _ready(self) -> bool:
        try:
            await self._agents.ListAgents(agent_pb2.ListAgentsRequest(page_size=1), timeout=1)
            model = await self.describe_model()
        except grpc.aio.AioRpcError:
            return False
        return model.state == model_pb2.MODEL_STATE_LOADED

    def process(self, service: str) -> psutil.Process:
        """The present process of "store", "worker" or "gateway"."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        return next(child for child in children if MODULES[service] in child.cmdline())

    async def close(self) -> None:
        """Stop everything in order."""
        await self._channel.close(None)
        self._process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self._process.wait(), 60)


@asynccontextmanager
async def running(
    model: str = "demo", show: bool = False, environment: Mapping[str, str] | None = None
) -> AsyncIterator[LiveStack]:
    """`agentmem up` over an empty data directory, which is removed afterwards. `environment` has more settings."""
    root = Path(tempfile.mkdtemp(prefix="agentmem-", dir="/tmp"))
    log = root / "up.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli.main", "up", "--model", model, "--data", str(root / "data")),
            *("--run-dir", str(root / "run"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", ""),
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    stack = None
    try:
        async with asyncio.timeout(START_SECONDS):
            while b"Ready." not in log.read_bytes():
                if process.returncode is not None:
                    raise RuntimeError(f"agentmem up did not start:\n{log.read_text(errors='replace')[-3000:]}")
                await asyncio.sleep(0.05)
        if show:
            sys.stdout.write("".join(f"  {line}\n" for line in log.read_text().splitlines() if "OpenBLAS" in line))
        addresses = json.loads((root / "run" / "gateway.json").read_text())
        stack = LiveStack(process, root, addresses, model.partition("=")[0])
        yield stack
    finally:
        if stack is not None:
            await stack.close()
        elif process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(root, ignore_errors=True)
