"""Agents that talk, fork, leave in the middle and are deleted: nothing grows after a warm-up.

With AGENTMEM_FULL_MATRIX=1 thirty of them for ten minutes, else ten for seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import inference_pb2
from benchmarks.demo_model.world import KINDS
from tests.full_matrix import FULL
from tests.system.client import Client
from tests.system.load import MEGABYTE, check_flat, complete, holdings, idle, observed, open_chat
from tests.system.stack import Stack

AGENTS = 30 if FULL else 10
SECONDS = 600 if FULL else 3
WARM_UP_SECONDS = 60 if FULL else 2
LEAST_TURNS = 4 * AGENTS
"""Turns in each stretch, however long on a busy machine."""
PATIENCE_SECONDS = 120
"""For the pool and the disk to be short of room, which on a slow machine comes later than that many turns."""
LIFE = 8
"""Turns of an agent until it is deleted and begins again: what is kept is bounded, so what is held must be."""
POOL_BYTES = AGENTS * 16 * MEGABYTE // 30
WARM_BYTES = AGENTS * 2 * MEGABYTE // 30
"""Less than all agents' KV, so that the disk evicts."""


class Soak:
    """The load, in stretches after which all is idle and nothing is kept."""

    def __init__(self, stack: Stack, client: Client) -> None:
        self._stack = stack
        self._client = client
        self.turns = 0
        self.left = 0
        self.short = False
        """Set when pool and disk have evicted."""

    async def run(self, seconds: float, seed: int) -> int:
        """Load for so long, for LEAST_TURNS and until all were short of room; the most bytes that were on the disk."""
        self._until = time.monotonic() + seconds
        self._enough = self.turns + LEAST_TURNS
        watching = asyncio.create_task(self._most_bytes())
        await asyncio.gather(*(self._agent(number, random.Random(seed + number)) for number in range(AGENTS)))
        most = await watching
        await idle(self._stack)
        await self._client.delete_all()
        return most

    async def _agent(self, number: int, dice: random.Random) -> None:
        name, lived = f"agent {number}", 0
        while self._goes_on():
            kind = dice.choice(KINDS)
            said = f"The {kind.name} of the {dice.choice(kind.entities)} is {dice.choice(kind.values)}. " * 3
            way = dice.random()
            if way < 0.15:
                await self._leave(name, said, dice)
            elif way < 0.3:
                await complete(self._stack, name, [("user", said)], max_tokens=12)
            else:
                assert (await self._client.say(name, said, max_tokens=12)).finished.durable
            self.turns += 1
            lived += 1
            if lived % 4 == 0:
                await self._fork(name)
            if lived == LIFE:
                await self._client.delete(name)
                lived = 0

    def _goes_on(self) -> bool:
        now = time.monotonic()
        short = self.short or now > self._until + PATIENCE_SECONDS
        return now < self._until or self.turns < self._enough or not short

    async def _leave(self, name: str, said: str, dice: random.Random) -> None:
        """Go at any moment, before the first byte of an answer too."""
        self.left += 1
        events = dice.randrange(4)
        if dice.random() < 0.5:
            chat = await open_chat(self._stack, name, [("user", said)], max_tokens=500)
            if events:
                assert await chat.status() == 200
                async for _ in chat.events():
                    if not (events := events - 1):
                        break
            await chat.close()
            return
        call = self._client.inference.Generate(
            inference_pb2.GenerateRequest(key=self._client.key(name), prompt=said, max_tokens=500)
        )
        try:
            for _ in range(events):
                assert await call.read() is not grpc.aio.EOF
        finally:
            call.cancel()

    async def _fork(self, name: str) -> None:
        fork = f"{name}, a fork"
        try:
            await self._client.fork(name, fork)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # all its turns were left
                raise
        else:
            await self._client.delete(fork)

    async def _most_bytes(self) -> int:
        most = 0
        while self._goes_on():
            most = max(most, bytes_on_disk(self._stack))
            evicted = await self._stack.metric("worker", "agentmem_cache_evictions_total", tier="hot")
            dropped = await self._stack.metric(
                "store", "agentmem_cache_evictions_total", tier="warm", reason="capacity"
            )
            self.short = bool(evicted and dropped)
            await asyncio.sleep(0.5)
        return most


def bytes_on_disk(stack: Stack) -> int:
    total = 0
    for file in stack.data.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@pytest.mark.essential("memory does not grow")
@pytest.mark.timeout(3600 if FULL else 600)
async def test_nothing_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {
        "worker_flags": ("--pool-bytes", str(POOL_BYTES)),
        "store_flags": ("--warm-bytes", str(WARM_BYTES)),
    }
    async with observed("demo", tmp_path, monkeypatch, **flags) as stack:
        soak = Soak(stack, await stack.client("gateway"))
        before_most = await soak.run(WARM_UP_SECONDS, seed=1)
        before, before_bytes = await holdings(stack), bytes_on_disk(stack)
        most = await soak.run(SECONDS, seed=2)
        after, after_bytes = await holdings(stack), bytes_on_disk(stack)
    assert soak.left
    assert soak.short, "neither the pool nor the disk was short"
    check_flat(before, after, grown=8 * MEGABYTE if FULL else 64 * MEGABYTE)  # seconds do not warm allocators up
    assert after_bytes <= before_bytes + MEGABYTE, (before_bytes, after_bytes)
    assert most <= max(before_most, WARM_BYTES) + 4 * MEGABYTE, (before_most, most)
