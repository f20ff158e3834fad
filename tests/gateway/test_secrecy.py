"""No key, prompt or answer is in a log or an error at the most talkative level, neither when all goes well nor else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from agentmem.v1 import inference_pb2, inference_pb2_grpc
from gateway.metrics import GatewayMetrics

from .running import connected
from .scripted import ScriptedWorker, delta, finished, started
from .secured import add_key, secured, showing

PROMPT, ANSWER, SENT = "canary-of-the-prompt", "canary-of-the-answer", "canary-of-a-wrong-key"
BODY = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio's debug mode has its own
async def test_canaries(
    worker: ScriptedWorker,
    run_dir: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("DEBUG")
    asyncio.get_running_loop().set_debug(True)
    key = add_key(run_dir)
    answers: list[str] = []

    async def well(_: Any) -> AsyncIterator[Any]:
        yield started()
        yield delta(ANSWER)
        yield finished()

    async def breaking(_: Any) -> AsyncIterator[Any]:
        yield started()
        yield delta(ANSWER)
        raise RuntimeError("the worker is broken")

    async with secured(run_dir) as gateway, showing(gateway, key) as (http, channel):
        for script in (well, breaking):
            worker.script = script
            for stream in (False, True):
                try:
                    await http.post("/v1/chat/completions", json={**BODY, "stream": stream})
                except httpx.TransportError as error:
                    answers.append(str(error))
            answers += await failures(grpc_generate(channel))
        answers += [
            await page(http, BODY | wrong) for wrong in ({"temperature": PROMPT}, {"tools": PROMPT}, {PROMPT: 1})
        ]
        answers.append((await http.post("/v1/chat/completions", content=PROMPT)).text)
        for shown in (SENT, f"am_000000000000_{SENT}{'x' * 20}", f"{key}x"):
            answers.append((await http.get("/v1/models", headers={"authorization": f"Bearer {shown}"})).text)
            answers.append((await http.get("/v1/models", headers={"authorization": "", "x-api-key": shown})).text)
            async with showing(gateway, shown) as (_, stranger):
                answers += await failures(grpc_generate(stranger))
        # What is no HTTP, and no message of the contract.
        async with connected(gateway) as (reader, writer):
            writer.write(f"GET / {key} {PROMPT}\r\n\r\n".encode())
            answers.append((await reader.read()).decode())
        for field in (b"\xff" + PROMPT.encode(), PROMPT.encode() * 2):
            answers += await failures(channel.unary_unary("/agentmem.v1.AgentService/GetAgent")(field))
        # A gateway that breaks in the midst of it all.
        monkeypatch.setattr(GatewayMetrics, "generation", broken)
        answers.append(await page(http, BODY))
        assert "incident" in answers[-1]
        answers += await failures(grpc_generate(channel))
        fields = [json.dumps(getattr(record, "fields", {}), default=str) for record in caplog.records]
        logged = "\n".join([caplog.text, *fields])
        caplog.clear()  # what its tracebacks hold of gRPC must not outlive the servers
    logged += "\n".join([caplog.text, *capfd.readouterr()])
    assert "answered" in logged  # it was the door's log
    secret = key.split("_", 2)[2]
    for canary in (PROMPT, ANSWER, SENT, secret):
        assert canary not in logged, [line for line in logged.splitlines() if canary in line]
    for said in answers:
        assert ANSWER not in said
        assert SENT not in said
        assert secret not in said


def broken(*_: object) -> None:
    raise RuntimeError("the gateway is broken")


async def grpc_generate(channel: grpc.aio.Channel) -> None:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    async for _ in stub.Generate(inference_pb2.GenerateRequest(prompt=PROMPT)):
        pass


async def failures(call: Any) -> list[str]:
    """Return the texts of a failed call's error."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return [error.details() or "", str(error.trailing_metadata())]
    return []


async def page(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    return (await http.post("/v1/chat/completions", json=body)).text
