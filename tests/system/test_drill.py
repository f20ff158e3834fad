"""A fault drill under continuous load: processes killed, stopped and ended, a quota filled; the stack heals by itself.

What is acknowledged is kept token for token, /readyz tells the truth within seconds, and clients hear of nothing but
what they can try again. With AGENTMEM_FULL_MATRIX=1 there are 21 kills, else 6.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import openai
import pytest

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import agent_pb2, cache_store_pb2, cache_store_pb2_grpc, types_pb2
from tests.full_matrix import FULL
from tests.system.stack import Client, serving
from tests.system.supervised import Supervised, Watched, supervised
from tests.system.test_kill_loop import Told, check

KILLS = (7 if FULL else 2) * [("worker",), ("store",), ("worker", "store")]
RESTARTS = [("worker",), ("store",)]
AGENTS = 3
TRUTH_SECONDS = 2.0
"""How soon /readyz must have noticed, in the median: this test shares its machine."""
QUOTA = 6_000_000
PASSING = (errors.Unavailable, errors.Aborted)


@dataclass
class Load:
    """Who talks all the time, and what they heard besides answers."""

    stack: Supervised
    told: list[Told] = field(default_factory=lambda: [Told(f"agent-{n}") for n in range(AGENTS)])
    refusals: list[errors.AgentmemError] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    over_http: int = 0

    async def talk(self, client: Client, told: Told) -> None:
        """Turns for ever; each is tried again under its request_id, after as long as the server says."""
        while True:
            number = len(told.turns)
            told.trying = f"turn {number} of {told.agent} 😀 " + "boat " * (number % 5)
            turn = None
            while turn is None:
                try:
                    turn = await client.say(told.agent, told.trying, request_id=f"{told.agent}-{number}", max_tokens=6)
                except grpc.aio.AioRpcError as error:
                    await self._heard(error)
            assert turn.finished.durable
            told.turns.append(turn)
            told.texts.append(told.trying)

    async def _heard(self, error: grpc.aio.AioRpcError) -> None:
        assert not errors.is_unreachable(error), "the gateway was there all the time"
        failure = errors.from_rpc(error)
        self.refusals.append(failure)
        if isinstance(failure, errors.ResourceExhausted):
            self.full.set()
        else:
            assert isinstance(failure, PASSING), failure
        await asyncio.sleep(min(getattr(failure, "retry_after", 0.0), 0.3))

    async def chat(self) -> None:
        """The same by OpenAI's SDK, which tries again by itself."""
        async with openai.AsyncOpenAI(base_url=f"{self.stack.url}/v1", api_key="-", max_retries=50) as sdk:
            while True:
                try:
                    answer = await sdk.chat.completions.create(
                        model=self.stack.model,
                        messages=[{"role": "user", "content": f"turn {self.over_http}"}],
                        max_tokens=4,
                        extra_headers={"X-Agent-ID": f"chat-{self.over_http}"},
                    )
                except openai.RateLimitError:
                    continue  # the quota is full for longer than the SDK is patient
                assert answer.choices[0].message.content is not None
                self.over_http += 1

    async def check(self) -> None:
        """Every acknowledged turn is in the ledger."""
        for told in self.told:
            await check(self.stack, told)

    async def goes_on(self) -> None:
        """Each agent, and the SDK, has another turn."""
        turns, chats = [len(told.turns) for told in self.told], self.over_http
        async with asyncio.timeout(60):
            while self.over_http == chats or any(
                len(told.turns) == before for told, before in zip(self.told, turns, strict=True)
            ):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def load(stack: Supervised) -> AsyncIterator[tuple[Load, Watched]]:
    """The load, and what /readyz says during it. Whatever fails in it fails the block."""
    load, watched = Load(stack), Watched(stack)
    async with asyncio.TaskGroup() as group:
        client = await stack.client("gateway")
        running = [group.create_task(load.talk(client, told)) for told in load.told]
        running += [group.create_task(load.chat()), group.create_task(watched.watch())]
        await load.goes_on()
        yield load, watched
        for task in running:
            task.cancel()


async def serves(stack: Supervised) -> float:
    """Wait until worker and store themselves say that they serve; the moment at which they did."""
    async with asyncio.timeout(60):
        while not (
            await serving(f"unix:{stack.run}/store.sock")
            and await serving(f"unix:{stack.run}/worker.sock", "agentmem.v1.InferenceService")
        ):
            await asyncio.sleep(0.05)
    return time.monotonic()


@pytest.mark.timeout(900)
async def test_the_stack_heals_by_itself() -> None:
    rng = random.Random(int(os.environ.get("AGENTMEM_TEST_SEED", "20260101")))
    noticed, recovered = [], []
    async with supervised(AGENTMEM_STORE_NAMESPACE_BYTES=str(QUOTA)) as stack, load(stack) as (talking, watched):
        faults = [(signal.SIGKILL, victims) for victims in rng.sample(KILLS, len(KILLS))]
        for number, victims in faults + [(signal.SIGTERM, victims) for victims in RESTARTS]:
            await asyncio.sleep(rng.uniform(0.0, 0.4))
            began = time.monotonic()
            await stack.signal(*victims, number=number)
            noticed.append(await watched.until(False, began, 30))
            recovered.append(await watched.until(True, await serves(stack), 30))
            await talking.check()
            await talking.goes_on()

        began = time.monotonic()
        await stack.signal("store", number=signal.SIGSTOP)
        noticed.append(await watched.until(False, began, 30))
        await asyncio.sleep(max(0.0, began + 10 - time.monotonic()))
        await stack.signal("store", number=signal.SIGCONT)
        recovered.append(await watched.until(True, time.monotonic(), 30))
        await talking.goes_on()
        await talking.check()

        told = len(talking.refusals)
        filled = await fill(stack)
        async with asyncio.timeout(60):
            await talking.full.wait()
        assert await stack.says_ready(), "it serves others"
        client = await stack.client("gateway")
        for key in filled:
            await client.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key), timeout=30)
        await talking.goes_on()
        await talking.check()
        assert {type(refusal) for refusal in talking.refusals[:told]} <= set(PASSING)
        assert talking.refusals[:told], "clients were told of outages"
    assert statistics.median(noticed) < TRUTH_SECONDS, noticed
    assert statistics.median(recovered) < TRUTH_SECONDS, recovered


async def fill(stack: Supervised) -> list[types_pb2.AgentKey]:
    """Agents with long ledgers, until the namespace has no room for a turn."""
    keys = []
    async with connect(f"unix:{stack.run}/store.sock") as channel:
        store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        for tokens in (100_000, 10_000, 1_000, 100, 10):
            while True:
                key = types_pb2.AgentKey(namespace="default", agent_id=f"fill-{len(keys)}", model_id=stack.model)
                ledger = cache_store_pb2.Ledger(
                    token_ids=[5] * tokens,
                    text=b"x" * tokens,
                    offsets=range(1, tokens + 1),
                    tokenizer_hash="-",
                    turns=[cache_store_pb2.LedgerTurn(version=1, end_token=tokens)],
                )
                try:
                    await store.CreateAgent(cache_store_pb2.CreateAgentRequest(key=key, ledger=ledger), timeout=30)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    break
                keys.append(key)
    return keys
