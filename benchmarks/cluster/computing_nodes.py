"""Nodes with real workers, which are asked for turns at their worker itself, wherever a gateway would send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, inference_pb2_grpc, types_pb2
from benchmarks import scraping, turns
from benchmarks.cluster.machines import HOST, START_SECONDS, Node, Process
from benchmarks.models import kv_bytes_per_token
from benchmarks.prompts import token_ids
from benchmarks.turns import Turn
from gateway.cli.up.openblas import preload_here

_HELD = 4
"""The longest memories that a worker's pool holds, and that running requests have room for besides."""
_MORE_TOKENS = 1024


def flags(model: str, directory: Path, longest: int) -> list[str]:
    """A worker's flags for memories of up to so many tokens, so small that two of them share a GPU."""
    held = _HELD * (longest + _MORE_TOKENS) * kv_bytes_per_token(directory)
    return [
        *(f"--model={model}", f"--context-length={longest + _MORE_TOKENS}", "--no-quality-check", "--metrics="),
        *(f"--pool-bytes={held}", f"--batch-bytes={2 * held}"),
    ]


class ComputingNode(Node):
    """A node whose worker computes. Its memory is made of exactly so many tokens. It takes four ports."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._metrics = f"{HOST}:{more['ports'] + 3}"
        self.environment["AGENTMEM_STORE_METRICS"] = self._metrics

    def started(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Process:
        """The worker has its store's data directory, and the BLAS that `agentmem up` gives it."""
        if command[0] == "inference_service":
            command = (*command, f"--data={self.root}/data")
            environment = {**environment, **preload_here().environment}
        return self.begun(command, log, environment)

    def begun(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Process:
        """The process of a complete command."""
        return super().started(command, log, environment)

    async def remember(self, model: str, agent: str, tokens: int) -> None:
        """A new agent with a memory of so many tokens, all of them on the disk."""
        ids = token_ids(tokens - 1, agent)
        async with self._channel() as channel:
            turn = await _turn(channel, model, agent, token_ids=types_pb2.TokenIds(ids=ids))
            turns.check(turn, tokens - 1, 1, 0)
            await _on_disk(channel, model, agent)

    async def next_turn(self, model: str, agent: str, text: str) -> Turn:
        """A turn of one token that appends a text; returns when all of it is on the disk."""
        async with self._channel() as channel:
            turn = await _turn(channel, model, agent, append=types_pb2.Append(text=text))
            await _on_disk(channel, model, agent)
        return turn

    async def fork(self, model: str, source: str, agent: str) -> None:
        """A second agent with the same memory."""
        async with self._channel() as channel:
            request = agent_pb2.ForkAgentRequest(key=_key(model, source), new_agent_id=agent)
            await agent_pb2_grpc.AgentServiceStub(channel).ForkAgent(request)

    async def evict(self, model: str, agent: str) -> None:
        """Out of the worker's memory."""
        async with self._channel() as channel:
            request = agent_pb2.EvictAgentRequest(key=_key(model, agent), tier=types_pb2.TIER_HOT)
            await agent_pb2_grpc.AgentServiceStub(channel).EvictAgent(request)

    async def uploaded(self) -> None:
        """Wait until object storage has all of the store's files."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                page = await scraping.scrape(f"http://{self._metrics}/metrics")
                if not page.total("agentmem_remote_backlog", operation="uploads"):
                    return
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[Any]:
        async with connect(self.doors[0]) as channel:
            await channel.channel_ready()
            yield channel


async def _turn(channel: Any, model: str, agent: str, **arguments: Any) -> Turn:
    request = inference_pb2.GenerateRequest(
        key=_key(model, agent), max_tokens=1, sampling=types_pb2.Sampling(ignore_eos=True), **arguments
    )
    return await turns.take(inference_pb2_grpc.InferenceServiceStub(channel), request)


async def _on_disk(channel: Any, model: str, agent: str) -> None:
    stub = agent_pb2_grpc.AgentServiceStub(channel)
    async with asyncio.timeout(START_SECONDS):
        while True:
            described = (await stub.GetAgent(agent_pb2.GetAgentRequest(key=_key(model, agent)))).agent
            if described.warm_tokens == described.tokens:
                return
            await asyncio.sleep(0.02)


def _key(model: str, agent: str) -> types_pb2.AgentKey:
    return types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=model)
