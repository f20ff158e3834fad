"""A store and a worker with several models, over one data directory, for benchmarks that speak to the worker itself."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

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
from benchmarks import scraping, turns
from benchmarks.live import scratch
from benchmarks.turns import Turn
from gateway.cli.up.openblas import preload_here

START_SECONDS = 240.0


class Services:
    """The processes, and what there is to ask of them. Models are NAME=DIRECTORY, the first is the default."""

    def __init__(self, root: Path, models: Sequence[str], flags: Sequence[str]) -> None:
        self._root = root
        self._metrics = f"127.0.0.1:{scraping.free_ports(1)}"
        common = ("--data", str(root / "data"), "--run-dir", str(root / "run"))
        named = [part for model in models for part in ("--model", model)]
        self._commands = {
            "store": ("cache_service", *common, "--metrics", ""),
            "worker": (
                *("inference_service", *common, *named, "--metrics", self._metrics, "--log-format", "json"),
                *("--swap-wait", "300", "--min-residency", "0", *flags),
            ),
        }
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._channel: grpc.aio.Channel | None = None

    async def start(self, *names: str) -> float:
        """Start processes and wait until they serve; the seconds that it took."""
        began = time.monotonic()
        for name in names:
            environment = {**os.environ, **(preload_here().environment if name == "worker" else {})}
            with (self._root / f"{name}.log").open("ab") as log:
                self._processes[name] = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", *self._commands[name]), stdout=log, stderr=log, env=environment
                )
            await self._serving(name)
        if self._channel is not None:
            await self._channel.close(None)
        self._channel = connect(f"unix:{self._root}/run/worker.sock")
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(self._channel)
        return time.monotonic() - began

    async def kill(self, name: str) -> None:
        """End a process by SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        """End all, the worker first."""
        if self._channel is not None:
            await self._channel.close(None)
        for name in ("worker", "store"):
            if (process := self._processes.pop(name, None)) is not None:
                process.send_signal(signal.SIGTERM)
                await process.wait()

    async def turn(
        self, model: str, agent: str, max_tokens: int = 4, spoke: asyncio.Event | None = None, **arguments: Any
    ) -> Turn:
        """One Generate of exactly so many tokens. `spoke` is set with its first, and by its failure."""
        sampling = types_pb2.Sampling(ignore_eos=True)
        request = inference_pb2.GenerateRequest(
            key=_key(model, agent), max_tokens=max_tokens, sampling=sampling, **arguments
        )
        return await turns.take(self._inference, request, spoke)

    async def hint(self, model: str, steps: Mapping[str, int | None]) -> None:
        """SetTurnHints: steps until each agent's next turn, None for never again."""
        hints = [agent_pb2.TurnHint(key=_key(model, agent), steps=each) for agent, each in steps.items()]
        await self._agents.SetTurnHints(agent_pb2.SetTurnHintsRequest(hints=hints))

    async def prefetch(self, model: str, agent: str) -> agent_pb2.PrefetchAgentResponse:
        """PrefetchAgent."""
        return await self._agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=_key(model, agent)))

    async def fork(self, model: str, source: str, agent: str) -> None:
        """ForkAgent."""
        await self._agents.ForkAgent(agent_pb2.ForkAgentRequest(key=_key(model, source), new_agent_id=agent))

    async def evict(self, model: str, agent: str) -> None:
        """EvictAgent from memory, once its KV is written."""
        await self._agents.EvictAgent(agent_pb2.EvictAgentRequest(key=_key(model, agent), tier=types_pb2.TIER_HOT))

    async def describe(self, model: str) -> model_pb2.Model:
        """GetModel."""
        return (await self._models.GetModel(model_pb2.GetModelRequest(model_id=model))).model

    async def watch_load(self, model: str) -> list[tuple[str, float]]:
        """LoadModel: its stages, with the monotonic time at which each was heard of first."""
        stages: list[tuple[str, float]] = []
        async with closing_stream(self._models.LoadModel(model_pb2.LoadModelRequest(model_id=model))) as events:
            async for event in events:
                if not stages or stages[-1][0] != event.stage:
                    stages.append((event.stage, time.monotonic()))
        return stages

    async def metric(self, name: str, **labels: str) -> float:
        """The worker's metric, summed over labels that are not named."""
        return (await scraping.scrape(f"http://{self._metrics}/metrics")).total(name, **labels) or 0.0

    def logged(self, message: str, since: float) -> list[dict[str, Any]]:
        """The worker's log lines of that message, not older than `since` (time.time()), with their time as a number."""
        lines = [line for line in (self._root / "worker.log").read_text().splitlines() if line.startswith("{")]
        found = [event for event in map(json.loads, lines) if event["message"] == message]
        return [
            {**event, "at": at}
            for event in found
            if (at := datetime.fromisoformat(event["time"]).timestamp()) >= since - 0.002
        ]

    async def _serving(self, name: str) -> None:
        async with asyncio.timeout(START_SECONDS), connect(f"unix:{self._root}/run/{name}.sock") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while True:
                if (status := self._processes[name].returncode) is not None:
                    log = (self._root / f"{name}.log").read_text(errors="replace")
                    raise RuntimeError(f"the {name} ended with {status}:\n{log[-3000:]}")
                try:
                    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(models: Sequence[str], *flags: str) -> AsyncIterator[Services]:
    """A store and a worker with these models over an empty data directory, which is removed afterwards."""
    with scratch() as root:
        services = Services(root, models, flags)
        try:
            await services.start("store", "worker")
            yield services
        finally:
            await services.stop()


def _key(model: str, agent: str) -> types_pb2.AgentKey:
    return types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=model)
