"""A fault drill under continuous load: processes killed, stopped and ended, a quota filled; the stack heals by itself.

What is acknowledged is kept token for token, /readyz tells the truth within seconds, clients hear of nothing but what
they can try again, and the alert rules, run over what a real Prometheus recorded, fire. With AGENTMEM_FULL_MATRIX=1
there are 21 kills, else one, and then there is no store that hangs, no full quota and no Prometheus.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import openai
import pytest

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import agent_pb2, cache_store_pb2, cache_store_pb2_grpc, types_pb2
from tests import prometheus
from tests.full_matrix import FULL
from tests.recorded import MISSED, Expected
from tests.recorded import check as check_alerts
from tests.system.stack import serving
from tests.system.supervised import Supervised, Watched, supervised
from tests.system.test_kill_loop import Told, check, talk

KILLS = 7 * [("worker",), ("store",), ("worker", "store")] if FULL else [("worker", "store")]
RESTARTS = [("worker",), ("store",)] if FULL else [("store",)]
AGENTS = 3 if FULL else 2
TRUTH_SECONDS = 2.0
"""How soon /readyz must have noticed, in the median: ten times as many processes may want the processors."""
QUOTA = 6_000_000
QUIET_SECONDS = 4.0 if FULL else 2.0
SEEN_SECONDS = 6.0
"""An outage that lasts so long is seen by a scrape and fires its alert; a worker may be back sooner."""
PASSING = (errors.Unavailable, errors.Aborted)


@dataclass
class Load:
    """Agents that talk all the time, and the errors that they got."""

    stack: Supervised
    told: list[Told] = field(default_factory=lambda: [Told(f"agent-{n}") for n in range(AGENTS)])
    refusals: list[errors.AgentmemError] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    over_http: int = 0

    async def heard(self, error: grpc.aio.AioRpcError) -> None:
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
        for told in self.told:
            await check(self.stack, told)

    async def goes_on(self) -> None:
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
        running = [group.create_task(talk(client, told, load.heard)) for told in load.told]
        running += [group.create_task(load.chat()), group.create_task(watched.watch())]
        await load.goes_on()
        yield load, watched
        for task in running:
            task.cancel()


async def serves(stack: Supervised) -> float:
    async with asyncio.timeout(60):
        while not (
            await serving(f"unix:{stack.run}/store.sock")
            and await serving(f"unix:{stack.run}/worker.sock", "agentmem.v1.InferenceService")
        ):
            await asyncio.sleep(0.05)
    return time.monotonic()


@dataclass(frozen=True)
class Record:
    """Prometheus's record of the drill, over which the alert rules are run."""

    folder: Path
    programs: prometheus.Programs | None = None
    running: prometheus.Prometheus | None = None
    missing: str = ""
    """Why there is no Prometheus."""

    async def scraped(self, services: Sequence[str], since: float) -> None:
        """Wait until processes started after `since` have been scraped: one that dies earlier leaves no trace.

        The metric is up to a second early: Linux gives the time of booting in whole seconds.
        """
        if self.running is None:
            return
        for service in services:
            started = f'process_start_time_seconds{{service="{service}"}} > {since - 1.0:.3f}'
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(self.running.query, started):
                    await asyncio.sleep(0.1)

    def check(self, expected: Sequence[Expected]) -> None:
        """Run the alert rules. Raises AssertionError; without Prometheus the test is skipped."""
        if self.programs is None or self.running is None:
            pytest.skip(f"the stack has healed, but the alerts were not tested: {self.missing}")
        check_alerts(self.programs, self.running, self.folder, expected)


@dataclass
class Drill:
    stack: Supervised
    talking: Load
    watched: Watched
    record: Record
    noticed: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)

    async def quiet(self) -> None:
        """Nothing happens, and no alert fires but for a busy machine."""
        began = time.time()
        await asyncio.sleep(QUIET_SECONDS)
        await self.talking.goes_on()
        self.expected.append(Expected(".*", began, time.time(), fires=False, but="|".join(sorted(MISSED))))

    async def end(self, *victims: str, number: signal.Signals) -> None:
        """Kill or stop services, which are started again."""
        began, wall = time.monotonic(), time.time()
        await self.stack.signal(*victims, number=number)
        await self._down(began)
        await self._healed(await serves(self.stack))
        await self.record.scraped(victims, wall)
        if "worker" in victims and time.time() - wall > SEEN_SECONDS:  # A store is back between two scrapes.
            alerts = "AgentmemProcessDown|AgentmemWorkerUnreachable"
            self.expected.append(Expected(alerts, wall, time.time()))

    async def freeze(self, seconds: float) -> None:
        """The store is there, and answers nobody."""
        began, wall = time.monotonic(), time.time()
        await self.stack.signal("store", number=signal.SIGSTOP)
        await self._down(began)
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        await self.stack.signal("store", number=signal.SIGCONT)
        await self._healed(time.monotonic())
        self.expected.append(Expected("AgentmemStoreUnreachable", wall, time.time()))

    async def fill(self) -> None:
        """The quota of the namespace is full, until agents are deleted."""
        wall = time.time()
        filled = await fill(self.stack)
        async with asyncio.timeout(60):
            await self.talking.full.wait()
        await asyncio.sleep(QUIET_SECONDS)
        assert await self.stack.says_ready(), "other namespaces are served"
        client = await self.stack.client("gateway")
        for key in filled:
            await client.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key), timeout=30)
        await self.talking.goes_on()
        await self.talking.check()
        self.expected.append(Expected("AgentmemQuotaFull", wall, time.time()))

    async def _down(self, began: float) -> None:
        self.noticed.append(await self.watched.until(False, began, 60))

    async def _healed(self, since: float) -> None:
        self.recovered.append(await self.watched.until(True, since, 60))
        await self.talking.check()
        await self.talking.goes_on()


@pytest.mark.essential("the stack heals by itself")
@pytest.mark.timeout(900)
async def test_the_stack_heals_by_itself(tmp_path: Path) -> None:
    rng = random.Random(int(os.environ.get("AGENTMEM_TEST_SEED", "20260101")))
    async with supervised(AGENTMEM_STORE_NAMESPACE_BYTES=str(QUOTA)) as stack, recording(stack, tmp_path) as record:
        async with load(stack) as (talking, watched):
            drill = Drill(stack, talking, watched, record)
            await drill.quiet()
            began = time.time()
            for victims in rng.sample(KILLS, len(KILLS)):
                await asyncio.sleep(rng.uniform(0.0, 0.4))
                await drill.end(*victims, number=signal.SIGKILL)
            for victims in RESTARTS:
                await drill.end(*victims, number=signal.SIGTERM)
            drill.expected.append(Expected("AgentmemRestarts", began, time.time()))
            if FULL:
                await drill.freeze(10)
            told = list(talking.refusals)
            if FULL:
                await drill.fill()
        if FULL:
            record.check(drill.expected)
    assert told, "clients heard of outages"
    assert {type(refusal) for refusal in told} <= set(PASSING)
    assert statistics.median(drill.noticed) < TRUTH_SECONDS, drill.noticed
    assert statistics.median(drill.recovered) < TRUTH_SECONDS, drill.recovered


@asynccontextmanager
async def recording(stack: Supervised, folder: Path) -> AsyncIterator[Record]:
    """A Prometheus that scrapes the stack each second, where there is one and alerts are tested."""
    if not FULL:
        yield Record(folder)
        return
    try:
        found = await asyncio.to_thread(prometheus.programs)
    except prometheus.Unavailable as problem:
        yield Record(folder, missing=str(problem))
        return
    addresses = {name: f"127.0.0.1:{stack.ports[name]}" for name in ("gateway", "worker", "store")}
    with prometheus.running(prometheus.shipped_config(folder, {"local": addresses}), folder) as running:
        yield Record(folder, found, running)


async def fill(stack: Supervised) -> list[types_pb2.AgentKey]:
    keys: list[types_pb2.AgentKey] = []
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
