"""`agentmem bench`: each turn's memory is what the table says, and no agent is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem import AsyncAgent, AsyncClient
from agentmem.errors import FailedPrecondition
from gateway.cli.bench import measuring
from gateway.cli.bench.measuring import SAMPLES, measure
from inference_service.models import measuring as worker_measuring
from tests.system.shared import SharedStacks
from tests.system.stack import hosting
from tests.tiny_models import write_llama


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_LENGTHS", (250,))
    monkeypatch.setattr(measuring, "_LONGEST", 8)


@pytest.fixture
async def client(stacks: SharedStacks) -> AsyncIterator[AsyncClient]:
    async with (
        stacks.using(write_llama, "store", "worker", "gateway") as stack,
        AsyncClient(stack.grpc) as client,
    ):
        yield client


async def test_first_tokens_and_speeds(client: AsyncClient) -> None:
    steps: list[str] = []
    found = await measure(client, "tiny", steps.append)
    assert {name: len(samples) for name, samples in found.ttft.items()} == dict.fromkeys(
        ("cold", "warm", "hot"), SAMPLES
    )
    assert {agents: len(samples) for agents, samples in found.speed.items()} == {1: SAMPLES, 4: SAMPLES}
    assert all(sample > 0 for samples in (*found.ttft.values(), *found.speed.values()) for sample in samples)
    assert found.tokens > 200 and found.model.raw.device
    assert steps[-1] == "tokens/s of 4 at once, 3 of 3"
    assert [agent async for agent in client.agents()] == []


async def test_an_interrupted_run_leaves_no_agent(client: AsyncClient) -> None:
    measuring_now = asyncio.Event()

    def report(step: str) -> None:
        if step.startswith("first tokens, 2"):
            measuring_now.set()

    running = asyncio.create_task(measure(client, "tiny", report))
    await asyncio.wait_for(measuring_now.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [agent async for agent in client.agents()] == []


async def test_a_new_model_is_measured_first(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_measuring, "_QUIET_SECONDS", 3600)
    steps: list[str] = []

    def report(step: str) -> None:
        if not steps:
            monkeypatch.setattr(worker_measuring, "_QUIET_SECONDS", 0)
        steps.append(step)

    flags = ("--measure-first-bytes", "0")
    stack = hosting(f"tiny={tiny}", "store", "worker", "gateway", worker_flags=flags)
    async with stack as at, AsyncClient(at.grpc) as client:
        assert (await client.models.get("tiny")).raw.unmeasured
        found = await measure(client, "tiny", report)
    assert steps[0].startswith("waiting until this new model is measured") and "a short turn" in steps
    assert found.model.raw.device and not found.model.raw.unmeasured


async def test_fault_memory_that_was_not_evicted_is_no_warm_turn(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kept(agent: AsyncAgent) -> int:
        return (await agent.info()).tokens

    monkeypatch.setattr(measuring, "evicted", kept)
    with pytest.raises(FailedPrecondition, match="a warm turn took its memory from hot"):
        await measure(client, "tiny", lambda _: None)


async def test_kv_that_does_not_reach_the_disk_ends_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_WRITTEN_SECONDS", 0.5)
    stack = hosting(f"tiny={tiny}", "store", "worker", "gateway", store_flags=("--free-bytes-floor", str(2**62)))
    async with stack as at, AsyncClient(at.grpc) as client:
        with pytest.raises(FailedPrecondition, match="KV does not reach the disk; `agentmem doctor` says more"):
            await measure(client, "tiny", lambda _: None)
        assert [agent async for agent in client.agents()] == []
