"""Many swaps under load: nothing is lost, nobody starves, nothing hangs, and memory is back where it was.

With AGENTMEM_FULL_MATRIX=1 there are 100 swaps, else 15.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests.full_matrix import FULL
from tests.system.client import Client, Turn
from tests.system.recomputed import TOLERANCE
from tests.system.several import Several, of_models
from tests.tiny_models import write_gemma3, write_llama

SWAPS = 100 if FULL else 15
WARM_UP = 10
"""Swaps until the process has grown to what it needs."""
CLIENTS = 8
IGNORE_EOS = types_pb2.Sampling(ignore_eos=True)


def models(root: Path) -> dict[str, Path]:
    llamas = {name: write_llama(root / name, seed=seed) for seed, name in enumerate("abc")}
    return {**llamas, "d": write_gemma3(root / "d", seed=3)}


several = of_models(models, "--log-format", "json")


@dataclass
class Memory:
    """One agent on one model, as its client knows it: what it was told, and what it tried in vain."""

    agent: str
    model: str
    told: list[tuple[str, Turn]] = field(default_factory=list)
    left: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When requests were sent, and when they had started."""


class Chatter:
    """A client whose agent says something on one model or another, again and again, and sometimes walks away."""

    def __init__(self, several: Several, number: int, seed: int) -> None:
        self._several = several
        self._number = number
        self._rng = random.Random(seed + number)
        self._clients: dict[str, Client] = {}
        self.memories = {name: Memory(f"agent-{number}", name) for name in several.directories}

    async def talk(self) -> None:
        for model in self.memories:
            self._clients[model] = await self._several.on(model)
        while True:
            await self._turn(self.memories[self._rng.choice([*self.memories])])

    async def _turn(self, memory: Memory) -> None:
        said = f"turn {len(memory.told) + memory.left} of {memory.agent} on {memory.model}"
        patience, sent = self._rng.uniform(0.01, 0.6) if self._rng.random() < 0.2 else 120.0, time.time()
        asked: Any = {"max_tokens": self._rng.randint(2, 12), "top_logprobs": 0, "sampling": IGNORE_EOS}
        try:
            async with asyncio.timeout(patience):
                turn = await self._clients[memory.model].say(memory.agent, said, **asked)
        except TimeoutError:
            memory.left += 1
            return
        memory.waits.append((sent, turn.started_at))
        assert turn.finished.durable
        memory.told.append((said, turn))


def loads(several: Several) -> list[float]:
    """When models were loaded, by the worker's log."""
    lines = [json.loads(line) for line in several.stack.logs("worker").splitlines() if line.startswith("{")]
    events = [line for line in lines if line.get("message", line.get("event")) == "model loaded"]
    return [datetime.fromisoformat(line["time"]).timestamp() for line in events]


async def active_bytes(several: Several) -> float:
    """MLX's memory with the first model loaded and nobody there."""
    await several.load("a")
    return await several.stack.metric("worker", "agentmem_mlx_memory_bytes", kind="active")


async def check(several: Several, memory: Memory, *, recompute: bool) -> None:
    """The ledger is what the client was told, in order and token by token, and at most what it had left besides."""
    ledger = await several.stack.ledger(memory.agent, memory.model)
    assert len(memory.told) <= len(ledger.turns) <= len(memory.told) + memory.left
    places = {place.version: place for place in ledger.turns}
    assert sorted(places) == list(range(1, len(places) + 1))
    for said, turn in memory.told:
        place = places[turn.finished.version.version]
        start = place.end_token - place.generated_tokens
        assert list(ledger.token_ids[start : place.end_token]) == turn.token_ids
        before = places.get(place.version - 1)
        text = ledger.text[ledger.offsets[before.end_token - 1] if before else 0 : ledger.offsets[place.end_token - 1]]
        assert said.encode() in text
    numbers = [turn.finished.version.version for _, turn in memory.told]
    assert numbers == sorted(set(numbers))
    if recompute and memory.told and numbers[-1] == len(places):
        turn = memory.told[-1][1]
        wanted = several.oracle(several.directories[memory.model]).logprobs_of(
            list(ledger.token_ids), len(ledger.token_ids) - len(turn.token_ids)
        )
        assert max(abs(wanted - turn.logprobs), default=0) < TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_swaps_under_load_lose_nothing_and_starve_nobody(several: Several) -> None:
    seed = int(os.environ.get("AGENTMEM_TEST_SEED", "20260101"))
    for name in several.directories:  # What is made once for all is made now.
        client = await several.on(name)
        await client.say("first", "Hello?", max_tokens=2)
    before = await active_bytes(several)
    already = await several.swaps()
    everyone = [Chatter(several, number, seed) for number in range(CLIENTS)]
    rss: list[int] = []
    talks = [asyncio.create_task(each.talk()) for each in everyone]
    process = psutil.Process(several.stack.processes["worker"].pid)
    try:
        async with asyncio.timeout(500):
            for goal in range(WARM_UP, SWAPS + 1, 5):
                while await several.swaps() < already + goal:
                    assert not any(talk.done() for talk in talks), [t.exception() for t in talks if t.done()]
                    await asyncio.sleep(0.05)
                rss.append(process.memory_info().rss)
    finally:
        for talk in talks:
            talk.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*talks)
    memories = [memory for each in everyone for memory in each.memories.values()]
    assert all(sum(len(m.told) for m in each.memories.values()) > 3 for each in everyone), "everybody was served"
    assert sum(memory.left for memory in memories) > 3, "some walked away"
    for memory in memories:
        memory.left += 1  # the turn that the end of the test cut off
        await check(several, memory, recompute=FULL or memory.agent == "agent-0")

    times = loads(several)
    swaps = Counter(sum(sent < at < began for at in times) for m in memories for sent, began in m.waits)
    others = len(several.directories) - 1
    most = others + 2  # its own, those in the queue, and one that ended before its model was opened and queued
    assert max(swaps) <= most, f"loads that requests waited for, their own included: {swaps}"

    await several.stack.until_running(0)
    client = await several.stack.client()
    for memory in memories:
        key = types_pb2.AgentKey(namespace="default", agent_id=memory.agent, model_id=memory.model)
        try:  # also those of which every turn was left: the server may have ended one
            await client.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=key, tier=types_pb2.TIER_HOT), timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise
    async with asyncio.timeout(60):  # until what they said last is written
        while await several.stack.metric("worker", "agentmem_pool_blocks", state="used"):
            await asyncio.sleep(0.05)
    for _ in range(5):  # what a cancelled turn's error holds goes when Python next looks for cycles
        for name in several.directories:
            await several.load(name)
        first = await active_bytes(several)
        if abs(first - before) < 4096:
            break
    assert await several.stack.metric("worker", "agentmem_pool_blocks", state="used") == 0
    assert abs(first - before) < 4096, "less than the smallest window or block"
    assert rss[-1] < rss[0] + (64 << 20)
