"""Between the tiers: evicted from memory and from disk, and computed again from the ledger."""

from pathlib import Path

import grpc
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests.oracle import Oracle
from tests.system.client import Client, refused
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.stack import Stack


@pytest.mark.kills
async def test_evictions_go_down_the_tiers_and_the_ledger_heals_them(stack: Stack, client: Client, tiny: Path) -> None:
    await client.say("a", LONG, **ARGUMENTS)
    tokens = (await client.agent("a")).tokens
    await stack.on_disk("a")
    assert await client.evict("a") > 0
    assert await client.evict("a") == 0
    turn = await client.say("a", "Who told you?", **ARGUMENTS)
    assert turn.cached == {"warm": tokens}
    await stack.on_disk("a")
    assert await client.evict("a", types_pb2.TIER_WARM) > 0
    agent = await client.agent("a")
    assert (agent.tier, agent.warm_bytes) == (types_pb2.TIER_NONE, 0)
    assert not stack.block_files()
    assert await client.prefetch("a") == (0, 0), "there is nothing to fetch"
    turn = await client.say("a", "And the house?", **ARGUMENTS)
    assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {}, "EVICTED")
    await check(stack, Oracle(tiny), turn)
    await stack.on_disk("a")
    assert (await client.agent("a")).warm_bytes > 0


async def test_prefetches_of_nobody_and_to_other_tiers_are_refused(client: Client) -> None:
    await refused(client.prefetch("nobody"), grpc.StatusCode.NOT_FOUND)
    warm = agent_pb2.PrefetchAgentRequest(key=client.key("a"), tier=types_pb2.TIER_WARM)
    await refused(client.agents.PrefetchAgent(warm, timeout=30), grpc.StatusCode.INVALID_ARGUMENT)
