"""Looking ahead, in real processes: by hints the farthest agent goes and the next speaker stays, and is fetched."""

from pathlib import Path

import numpy as np
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests.system.client import Client
from tests.system.stack import Stack, hosting

BLOCK = 2 * 2 * 2 * 64 * 256 * 5 // 8
"""Bytes of a block of the tiny model in float32: layers, K and V, heads, width, tokens; 5 bits an element."""
TOKENS = 301
"""Two blocks for each agent."""


async def first_turn(stack: Stack, client: Client, agent: str) -> None:
    """A turn, and its KV written: what is not written yet is not evicted."""
    ids = np.random.default_rng(ord(agent)).integers(3, 250, TOKENS - 1)
    await client.turn(agent, token_ids=types_pb2.TokenIds(ids=map(int, ids)), max_tokens=1)
    await stack.on_disk(agent)


async def hint(client: Client, **steps: int | None) -> None:
    hints = [agent_pb2.TurnHint(key=client.key(agent), steps=each) for agent, each in steps.items()]
    await client.agents.SetTurnHints(agent_pb2.SetTurnHintsRequest(hints=hints), timeout=10)


async def hot(client: Client) -> str:
    return "".join(sorted(a.key.agent_id for a in await client.listed() if a.tier == types_pb2.TIER_HOT))


@pytest.mark.slow
async def test_by_hints_the_farthest_goes_and_the_next_speaker_stays(tiny: Path) -> None:
    """Three agents fit."""
    async with hosting(f"tiny={tiny}", worker_flags=("--pool-bytes", str(6 * BLOCK))) as stack:
        client = await stack.client()
        for agent in "abcd":
            await first_turn(stack, client, agent)
        assert await hot(client) == "bcd", "of those of whom nobody has said anything, the one used longest ago goes"
        await hint(client, a=2, b=0, c=3, d=1)
        await client.prefill("b", append=types_pb2.Append(text="Listen."))
        await stack.on_disk("b")
        await first_turn(stack, client, "e")
        assert await hot(client) == "bde", "c speaks last; b has listened, and is still the next to speak"
        await hint(client, a=2, b=0, c=3, d=1, e=2)
        assert await client.prefetch("c") == (0, 0), "who speaks later takes no room from those who speak sooner"
        assert await hot(client) == "bde"
        await hint(client, e=None)
        assert (await client.prefetch("a"))[0] == TOKENS
        assert await hot(client) == "abd"
        assert set((await client.say("b", "And the house?", max_tokens=1)).cached) == {"hot"}
