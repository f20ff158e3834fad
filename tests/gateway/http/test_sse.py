"""Streams of events that have nothing to say for a while are kept alive, and clients do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.app import Gateway
from tests.gateway.running import running
from tests.gateway.scripted import ScriptedWorker, delta, finished, started

CHAT: Any = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


@pytest.fixture
async def gateway(run_dir: Path) -> AsyncIterator[Gateway]:
    async with running(run_dir, keep_alive=0.05) as started_gateway:
        yield started_gateway


async def hesitant(_: Any) -> AsyncIterator[Any]:
    """A turn with a long prompt, and another that decodes slowly."""
    for event in (started(), delta("Hel"), delta("lo")):
        yield event
        await asyncio.sleep(0.3)
    yield finished()


async def test_silence_is_filled_with_comments(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.script = hesitant
    answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    told = answer.text.split("\n\n")
    assert told.count(": keep-alive") >= 3
    assert all(part == ": keep-alive" or part.startswith("data: ") for part in told if part)
    assert told[-2:] == ["data: [DONE]", ""]


async def test_the_sdks_skip_them(
    worker: ScriptedWorker, sdk: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    worker.script = hesitant
    said = ""
    async for chunk in await sdk.chat.completions.create(**CHAT, stream=True):
        said += chunk.choices[0].delta.content or ""
    assert said == "Hello"
    async with claude.messages.stream(**CHAT) as stream:
        assert await stream.get_final_text() == "Hello"
