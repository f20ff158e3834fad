"""Streams of events that have nothing to say for a while are kept alive, and clients do not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentmem.errors import ResourceExhausted
from gateway.app import Gateway
from tests.gateway.running import running
from tests.gateway.scripted import ScriptedWorker, delta, finished, started

CHAT: Any = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


@pytest.fixture
async def gateway(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setattr("gateway.http.streaming.KEEP_ALIVE_SECONDS", 0.05)
    async with running(run_dir) as started_gateway:
        yield started_gateway


async def hesitant(_: Any) -> AsyncIterator[Any]:
    for event in (started(), delta("Hel"), delta("lo")):
        yield event
        await asyncio.sleep(0.3)
    yield finished()


async def late(_: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(0.3)
    async for event in hesitant(_):
        yield event


RESPONSE: Any = {"model": "demo", "input": "hi"}
COMPLETION: Any = {"model": "demo", "prompt": "hi", "max_tokens": 9}


def told(answer: httpx.Response) -> list[Any]:
    """Return the data of the events; clients skip comments."""
    data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


@pytest.mark.parametrize("script", [hesitant, late])
async def test_silence_is_filled_with_what_each_dialect_has(
    worker: ScriptedWorker, http: httpx.AsyncClient, script: Any
) -> None:
    """Clients give up after some time without an event, and comments are none."""
    worker.script = script
    for path, body in (("chat/completions", CHAT), ("completions", COMPLETION), ("responses", RESPONSE)):
        answer = await http.post(f"/v1/{path}", json={**body, "stream": True})
        assert ": keep-alive" not in answer.text
        events = told(answer)
        match path:
            case "chat/completions":
                empty = [each for each in events if each["choices"][0]["delta"] == {}]
                assert len(empty) >= 4
                assert answer.text.endswith("data: [DONE]\n\n")
            case "completions":
                assert sum(each["choices"][0]["text"] == "" for each in events) >= 4
            case "responses":
                assert sum(each["type"] == "response.in_progress" for each in events) >= 4
                assert [each["sequence_number"] for each in events] == list(range(len(events)))
                assert events[0]["type"] == "response.created"
    events = told(await http.post("/v1/messages", json={**CHAT, "stream": True}))
    assert sum(each["type"] == "ping" for each in events) >= 4


async def test_the_sdks_skip_them(
    worker: ScriptedWorker, sdk: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    worker.script = late
    said = ""
    async for chunk in await sdk.chat.completions.create(**CHAT, stream=True):
        said += chunk.choices[0].delta.content or ""
    assert said == "Hello"
    async with claude.messages.stream(**CHAT) as stream:
        assert await stream.get_final_text() == "Hello"
    async with sdk.responses.stream(**RESPONSE) as response:
        assert (await response.get_final_response()).output_text == "Hello"


async def test_what_is_refused_late_ends_the_stream(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    async def refuses(_: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0.2)
        raise ResourceExhausted("the pool is full")
        yield

    worker.script = refuses
    events = told(await http.post("/v1/responses", json={**RESPONSE, "stream": True}))
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.failed"
    answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.status_code == 200
    assert told(answer)[-1]["error"]["message"] == "the pool is full"
    answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 429
