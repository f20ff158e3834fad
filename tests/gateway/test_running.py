"""The overview lists the running turns of both doors, waiting or answering; the worker is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest

from agentmem import errors
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from gateway.http import overview

from .scripted import ScriptedWorker, delta, finished, started


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reading is told twice."""
    monkeypatch.setattr(overview, "_FRESH_SECONDS", 0.0)


class Steps:
    """A script whose turns begin, and end, when a test says so."""

    def __init__(self) -> None:
        self.begin, self.end = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        await self.begin.wait()
        yield started()
        yield delta("Hello")
        await self.end.wait()
        yield finished()


async def told(http: httpx.AsyncClient) -> list[tuple[str, str, str]]:
    """Agents, models and states of running turns."""
    found: Any = (await http.get("/v1/overview")).raise_for_status().json()
    assert found["namespace"] == "default"
    assert all(turn["namespace"] == "default" and turn["since"] <= found["time"] for turn in found["turns_running"])
    return [(turn["agent_id"], turn["model_id"], turn["state"]) for turn in found["turns_running"]]


async def becomes(http: httpx.AsyncClient, wanted: list[tuple[str, str, str]]) -> None:
    """Wait until that is told."""
    async with asyncio.timeout(20):
        while await told(http) != wanted:
            await asyncio.sleep(0.02)


def generate(channel: grpc.aio.Channel, agent: str) -> Any:
    """A turn over gRPC."""
    request = inference_pb2.GenerateRequest(key=types_pb2.AgentKey(agent_id=agent, model_id="demo"), prompt="Hello")
    return inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)


async def test_turns_of_both_doors(worker: ScriptedWorker, http: httpx.AsyncClient, channel: grpc.aio.Channel) -> None:
    steps = Steps()
    worker.script = steps
    assert await told(http) == []
    first = generate(channel, "marco")
    await becomes(http, [("marco", "demo", "waiting")])
    said = {"append": {"text": "Hello"}}
    second = asyncio.create_task(http.post("/v1/agents/polo/generate?model=demo", json=said))
    await becomes(http, [("marco", "demo", "waiting"), ("polo", "demo", "waiting")])
    steps.begin.set()
    await becomes(http, [("marco", "demo", "answering"), ("polo", "demo", "answering")])
    steps.end.set()
    assert len([event async for event in first]) == 3
    assert (await second).status_code == 200
    await becomes(http, [])


async def test_turns_that_do_not_end_well(
    worker: ScriptedWorker, http: httpx.AsyncClient, channel: grpc.aio.Channel
) -> None:
    worker.script = Steps()
    call = generate(channel, "marco")
    await becomes(http, [("marco", "demo", "waiting")])
    call.cancel()
    await becomes(http, [])

    async def fails(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield started()
        raise errors.Unavailable("the engine died")

    worker.script = fails
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in generate(channel, "marco"):
            pass
    await becomes(http, [])
    await worker.stop()
    assert (await http.post("/v1/agents/polo/generate?model=demo", json={"prompt": "Hi"})).status_code == 503
    await becomes(http, [])


async def test_context_that_is_taken_in(
    worker: ScriptedWorker, http: httpx.AsyncClient, channel: grpc.aio.Channel
) -> None:
    answer = await http.post("/v1/agents/polo/prefill?model=demo", json={"prompt": "Hello"})
    assert answer.status_code == 200, answer.text
    assert await told(http) == []
    worker.error = errors.NotFound("agent", "polo")
    request = inference_pb2.PrefillRequest(key=types_pb2.AgentKey(agent_id="polo", model_id="demo"), prompt="Hello")
    with pytest.raises(grpc.aio.AioRpcError):
        await inference_pb2_grpc.InferenceServiceStub(channel).Prefill(request)
    assert await told(http) == []
