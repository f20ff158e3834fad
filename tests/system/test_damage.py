"""Damaged files of KV: the answer is right all the same, the file is out of use, the counters moved."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentmem.v1 import inference_pb2
from tests.oracle import Oracle
from tests.system.stack import Client, Stack

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


DAMAGE: dict[str, tuple[Callable[[Path, Path], None], str, str]] = {
    "a": (flip_bit, "CORRUPT", "digest"),
    "b": (truncate, "CORRUPT", "digest"),
    "c": (empty, "CORRUPT", "digest"),
    "d": (delete, "ABSENT", "missing"),
    "e": (swap, "CORRUPT", "digest"),
    "f": (lambda path, other: None, "CORRUPT", "digest"),  # the other side of the swap
}


async def told(client: Client, agent: str) -> None:
    request = inference_pb2.PrefillRequest(key=client.key(agent), prompt=TEXTS[agent])
    await client.inference.Prefill(request, timeout=60)


@pytest.mark.essential("damage is never served")
@pytest.mark.kills
async def test_damaged_blocks_are_refused_and_healed(stack: Stack, client: Client, tiny: Path) -> None:
    for agent in TEXTS:
        await told(client, agent)
    quarantined = await stack.metric("store", "agentmem_cache_quarantined_total", reason="digest")
    second = {agent: (await stack.on_disk(agent))[1] for agent in TEXTS}
    stack.kill("worker")
    for agent, (damage, _, _) in DAMAGE.items():
        damage(second[agent], second["f"])
    await stack.up("worker")

    oracle = Oracle(tiny)
    for agent, (_, reason, _) in DAMAGE.items():
        turn = await client.say(agent, "And who told you?", max_tokens=10, top_logprobs=0)
        assert (turn.match, turn.cached, turn.miss) == ("EXTEND", {"warm": 256}, reason), agent
        ledger = await stack.ledger(agent)
        wanted = oracle.logprobs_of(list(ledger.token_ids), len(ledger.token_ids) - len(turn.token_ids))
        assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3, agent
        assert ledger.text.startswith(b"<|bos|>" + TEXTS[agent].encode())

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


@pytest.mark.slow
@pytest.mark.kills
async def test_everything_gone_is_prefilled_from_the_ledger(stack: Stack, client: Client, tiny: Path) -> None:
    await told(client, "a")
    await stack.on_disk("a")
    stack.kill("worker", "store")
    for path in stack.block_files():
        path.unlink()
    await stack.up()
    turn = await client.say("a", "And who told you?", max_tokens=10, top_logprobs=0)
    assert (turn.match, turn.cached) == ("EXTEND", {})
    ledger = await stack.ledger("a")
    wanted = Oracle(tiny).logprobs_of(list(ledger.token_ids), len(ledger.token_ids) - len(turn.token_ids))
    assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("kind", ["store", "worker"])
async def test_hit_metrics_move_by_exactly_what_was_reused(stack: Stack, client: Client, kind: str) -> None:
    await told(client, "a")
    await stack.on_disk("a")
    tokens = len((await stack.ledger("a")).token_ids)
    stack.kill("worker", kind) if kind == "store" else stack.kill("worker")
    await stack.up(*(("store", "worker") if kind == "store" else ("worker",)))
    assert await stack.metric("worker", "agentmem_prefix_cache_hits_total", tier="warm") == 0
    warm = await client.say("a", "One?", max_tokens=4)
    assert warm.cached == {"warm": tokens}
    assert await stack.metric("worker", "agentmem_prefix_cache_hits_total", tier="warm") == tokens
    before = len((await stack.ledger("a")).token_ids)
    hot = await client.say("a", "Two?", max_tokens=4)
    assert hot.cached == {"hot": before}
    assert await stack.metric("worker", "agentmem_prefix_cache_hits_total", tier="hot") == before
    assert await stack.metric("worker", "agentmem_prefix_cache_hits_total", tier="warm") == tokens
    prompts = warm.started.cache.prompt_tokens + hot.started.cache.prompt_tokens
    assert await stack.metric("worker", "agentmem_prefix_cache_queries_total") == prompts
    assert await stack.metric("worker", "agentmem_prompt_tokens_total") == prompts
    assert await stack.metric("worker", "agentmem_generation_tokens_total") == 8
    assert await stack.metric("worker", "agentmem_time_to_first_token_seconds_count", tier="warm") == 1
