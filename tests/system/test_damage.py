"""Damaged and evicted files of KV: the answer is right all the same, the file is out of use, the counters moved."""

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests.oracle import Oracle
from tests.system.client import Client, refused
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.stack import Stack

TEXTS = {name: f"{name} says: " + f"the colour of the boat of {name} is green 😀. " * 22 for name in "abcdef"}
"""About 700 tokens each, with no common beginning."""


def flip_bit(path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path, _: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def empty(path: Path, _: Path) -> None:
    os.truncate(path, 0)


def delete(path: Path, _: Path) -> None:
    path.unlink()


def swap(path: Path, other: Path) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


DAMAGE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a": (flip_bit, "CORRUPT"),
    "b": (truncate, "CORRUPT"),
    "c": (empty, "CORRUPT"),
    "d": (delete, "ABSENT"),
    "e": (swap, "CORRUPT"),
    "f": (lambda path, other: None, "CORRUPT"),  # the other side of the swap
}


@pytest.mark.essential("damage is never served")
@pytest.mark.kills
async def test_damaged_blocks_are_refused_and_healed(stack: Stack, client: Client, tiny: Path) -> None:
    for agent in TEXTS:
        await client.prefill(agent, prompt=TEXTS[agent])
    quarantined = await stack.metric("store", "agentmem_cache_quarantined_total", reason="digest")
    second = {agent: (await stack.on_disk(agent))[1] for agent in TEXTS}
    stack.kill("worker")
    for agent, (damage, _) in DAMAGE.items():
        damage(second[agent], second["f"])
    await stack.up("worker")

    oracle = Oracle(tiny)
    for agent, (_, reason) in DAMAGE.items():
        turn = await client.say(agent, "And who told you?", max_tokens=10, top_logprobs=0)
        assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {"warm": 256}, reason), agent
        await check(stack, oracle, turn, agent)
        assert (await stack.ledger(agent)).text.startswith(b"<|bos|>" + TEXTS[agent].encode())

    assert await stack.metric("store", "agentmem_cache_quarantined_total", reason="digest") == quarantined + 5
    assert await stack.metric("worker", "agentmem_cache_load_failures_total", reason="digest") == 5
    assert await stack.metric("worker", "agentmem_cache_load_failures_total", reason="missing") == 1

    for agent in DAMAGE:
        await stack.on_disk(agent)
    stack.kill("worker")
    await stack.up("worker")
    for agent in DAMAGE:
        tokens = len((await stack.ledger(agent)).token_ids)
        turn = await client.say(agent, "Again?", max_tokens=3)
        assert turn.cached == {"warm": tokens}, "what was healed is written again"


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
    await refused(client.prefetch("nobody"), grpc.StatusCode.NOT_FOUND)
    to_disk = agent_pb2.PrefetchAgentRequest(key=client.key("a"), tier=types_pb2.TIER_WARM)
    await refused(client.agents.PrefetchAgent(to_disk, timeout=30), grpc.StatusCode.INVALID_ARGUMENT)
    turn = await client.say("a", "And the house?", **ARGUMENTS)
    assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {}, "EVICTED")
    await check(stack, Oracle(tiny), turn)
    await stack.on_disk("a")
    assert (await client.agent("a")).warm_bytes > 0
