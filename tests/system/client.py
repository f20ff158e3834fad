"""A client of the contract for tests, and what it waits for and is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import pytest

from agentmem.channels import connect
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2_grpc,
    types_pb2,
)


@dataclass
class Turn:
    started: inference_pb2.Started = field(default_factory=inference_pb2.Started)
    finished: inference_pb2.Finished = field(default_factory=inference_pb2.Finished)
    reasoning: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    calls: list[inference_pb2.ToolCall] = field(default_factory=list)
    started_at: float = 0.0

    @property
    def cached(self) -> dict[str, int]:
        """Reused tokens by tier name."""
        return {types_pb2.Tier.Name(c.tier).removeprefix("TIER_").lower(): c.tokens for c in self.started.cache.cached}

    @property
    def match(self) -> str:
        return types_pb2.Match.Name(self.started.cache.match).removeprefix("MATCH_")

    @property
    def miss(self) -> str:
        return types_pb2.MissReason.Name(self.started.cache.miss_reason).removeprefix("MISS_REASON_")


class Client:
    """Speaks the contract to one address."""

    def __init__(self, target: str, model: str) -> None:
        self.channel = connect(target)
        self.model = model
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.agents = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)

    def key(self, agent: str) -> types_pb2.AgentKey:
        """The agent's key in the default namespace."""
        return types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=self.model)

    def request(self, agent: str, **arguments: object) -> inference_pb2.GenerateRequest:
        return inference_pb2.GenerateRequest(key=self.key(agent), **arguments)  # type: ignore[arg-type]

    async def turn(self, agent: str, **arguments: object) -> Turn:
        """One Generate, to its end. Raises AioRpcError; a stream without `finished` is a failure too."""
        turn, ended = Turn(), False
        call = self.inference.Generate(self.request(agent, **arguments), timeout=120)
        try:
            async for event in call:
                if event.HasField("started"):
                    turn.started, turn.started_at = event.started, time.time()
                elif event.HasField("delta"):
                    turn.reasoning += event.delta.reasoning
                    turn.text += event.delta.text
                    turn.token_ids += event.delta.token_ids
                    turn.logprobs += [token.logprob for token in event.delta.logprobs]
                    turn.calls += event.delta.tool_calls
                else:
                    turn.finished, ended = event.finished, True
        finally:
            call.cancel()
        assert ended, "the stream ended with OK but without finished"
        return turn

    async def say(self, agent: str, text: str, **arguments: object) -> Turn:
        return await self.turn(agent, append=append(text), **arguments)

    async def agent(self, agent: str) -> agent_pb2.Agent:
        return (await self.agents.GetAgent(agent_pb2.GetAgentRequest(key=self.key(agent)), timeout=10)).agent

    async def listed(self) -> list[agent_pb2.Agent]:
        request = agent_pb2.ListAgentsRequest(namespace="default", page_size=1000)
        return list((await self.agents.ListAgents(request, timeout=30)).agents)

    async def delete(self, agent: str) -> None:
        await self.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=self.key(agent)), timeout=30)

    async def delete_all(self) -> None:
        for agent in await self.listed():
            await self.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=agent.key), timeout=30)

    async def fork(self, agent: str, new: str, **fields: int) -> agent_pb2.Agent:
        request = agent_pb2.ForkAgentRequest(key=self.key(agent), new_agent_id=new, **fields)  # type: ignore[arg-type]
        return (await self.agents.ForkAgent(request, timeout=30)).agent

    async def snapshot(self, agent: str, name: str) -> None:
        request = agent_pb2.CreateSnapshotRequest(key=self.key(agent), name=name)
        await self.agents.CreateSnapshot(request, timeout=30)

    async def snapshots(self, agent: str) -> list[agent_pb2.Snapshot]:
        request = agent_pb2.ListSnapshotsRequest(key=self.key(agent))
        return list((await self.agents.ListSnapshots(request, timeout=10)).snapshots)

    async def restore(self, agent: str, name: str) -> None:
        request = agent_pb2.RestoreSnapshotRequest(key=self.key(agent), name=name)
        await self.agents.RestoreSnapshot(request, timeout=30)

    async def probe(self, agent: str, **prompt: object) -> types_pb2.CacheReport:
        request = agent_pb2.ProbeAgentRequest(key=self.key(agent), **prompt)  # type: ignore[arg-type]
        return (await self.agents.ProbeAgent(request, timeout=10)).cache

    async def prefill(self, agent: str, **prompt: object) -> inference_pb2.PrefillResponse:
        request = inference_pb2.PrefillRequest(key=self.key(agent), **prompt)  # type: ignore[arg-type]
        return await self.inference.Prefill(request, timeout=60)

    async def prefetch(self, agent: str) -> tuple[int, int]:
        """Return the tokens that are in memory after it, and the bytes that were read for it."""
        told = await self.agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=self.key(agent)), timeout=30)
        return told.tokens, told.bytes

    async def evict(self, agent: str, tier: types_pb2.Tier.ValueType = types_pb2.TIER_HOT) -> int:
        """Return the bytes that it frees."""
        request = agent_pb2.EvictAgentRequest(key=self.key(agent), tier=tier)
        return (await self.agents.EvictAgent(request, timeout=30)).freed_bytes

    async def close(self) -> None:
        await self.channel.close(None)


def chat(*messages: tuple[str, str]) -> types_pb2.Messages:
    """Messages from (role, content) pairs."""
    return types_pb2.Messages(messages=[types_pb2.ChatMessage(role=role, content=text) for role, text in messages])


def append(text: str) -> types_pb2.Append:
    """A message of the user."""
    return types_pb2.Append(messages=chat(("user", text)))


async def until(true: Callable[[], Awaitable[object]], within: float = 60) -> None:
    """Wait until something is true. Raises TimeoutError."""
    async with asyncio.timeout(within):
        while not await true():
            await asyncio.sleep(0.02)


async def refused(call: Awaitable[object], code: grpc.StatusCode, *words: str) -> grpc.aio.AioRpcError:
    """Return the error of a call, which must have this code and these words."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code, caught.value
    assert all(each in (caught.value.details() or "") for each in words), caught.value.details()
    return caught.value
