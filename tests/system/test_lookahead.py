"""Looking ahead, in real processes: by hints the farthest agent goes and the next speaker stays, and is fetched."""

import asyncio
import signal
from pathlib import Path

import grpc
import numpy as np
import pytest

from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from tests.system.stack import Client, Stack, running
from tests.tiny_models import write_llama

BLOCK = 2 * 2 * 2 * 64 * 256 * 5 // 8
"""Bytes of a block of the tiny model in float32: layers, K and V, heads, width, tokens; 5 bits an element."""
TOKENS = 301
"""Of each agent: two blocks."""


async def first_turn(stack: Stack, client: Client, agent: str) -> None:
    """A turn, and its KV written: what is not written yet is not evicted."""
    ids = np.random.default_rng(ord(agent)).integers(3, 250, TOKENS - 1)
    await client.turn(agent, token_ids=types_pb2.TokenIds(ids=map(int, ids)), max_tokens=1)
    await stack.on_disk(agent)


async def hint(client: Client, **steps: int | None) -> None:
    hints = [agent_pb2.TurnHint(key=client.key(agent), steps=each) for agent, each in steps.items()]
    await client.agents.SetTurnHints(agent_pb2.SetTurnHintsRequest(hints=hints), timeout=10)


async def prefetch(client: Client, agent: str) -> int:
    request = agent_pb2.PrefetchAgentRequest(key=client.key(agent))
    return (await client.agents.PrefetchAgent(request, timeout=30)).tokens


async def hot(client: Client, agents: str = "abcdef") -> str:
    """Those of the agents that are in the pool."""
    listed = await client.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"), timeout=10)
    tiers = {agent.key.agent_id: agent.tier for agent in listed.agents}
    return "".join(agent for agent in agents if tiers.get(agent) == types_pb2.TIER_HOT)


@pytest.mark.slow
async def test_by_hints_the_farthest_goes_and_the_next_speaker_stays(tmp_path: Path) -> None:
    """Three agents fit. Then the worker is ended while prefetches are under way, and leaves cleanly."""
    directory = write_llama(tmp_path / "m")
    async with running(f"tiny={directory}", worker_flags=("--pool-bytes", str(6 * BLOCK))) as stack:
        client = await stack.client()
        for agent in "abcd":
            await first_turn(stack, client, agent)
        assert await hot(client) == "bcd", "of those of whom nobody has said anything, the one used longest ago goes"
        await hint(client, a=2, b=0, c=3, d=1)
        told = inference_pb2.PrefillRequest(key=client.key("b"), append=types_pb2.Append(text="Listen."))
        await client.inference.Prefill(told, timeout=30)
        await stack.on_disk("b")
        await first_turn(stack, client, "e")
        assert await hot(client) == "bde", "c speaks last; b has listened, and is still the next to speak"
        await hint(client, a=2, b=0, c=3, d=1, e=2)
        assert await prefetch(client, "c") == 0, "who speaks later takes no room from those who speak sooner"
        assert await hot(client) == "bde"
        await hint(client, e=None)
        assert await prefetch(client, "a") == TOKENS
        assert await hot(client) == "abd"
        turn = await client.say("b", "And the house?", max_tokens=1)
        assert set(turn.cached) == {"hot"}

        async def fetch_again() -> int:
            while True:
                await client.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=client.key("a")), timeout=30)
                await prefetch(client, "a")

        fetching = [asyncio.create_task(fetch_again()) for _ in range(4)]
        await asyncio.sleep(0.5)
        worker = stack.processes["worker"]
        worker.send_signal(signal.SIGTERM)
        outcomes = await asyncio.gather(*fetching, return_exceptions=True)
        assert all(isinstance(each, grpc.aio.AioRpcError) for each in outcomes)
        assert await asyncio.to_thread(worker.wait, 30) == 0
        stack.processes.pop("worker")
        log = stack.logs("worker")
        assert "Traceback" not in log and "does not add up" not in log
