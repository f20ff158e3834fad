"""OpenAI's SDK, unmodified, against a real stack: uvicorn, the worker with the demo model, the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.system.stack import Stack, running

FACT = "The colour of the boat is green."
QUESTION = "What is the colour of the boat?"
ANSWER = "The colour of the boat is green."
MODEL: Any = {"model": "demo", "temperature": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with running("demo", "store", "worker", "gateway") as started:
        await started.until_ready()
        yield started


pytestmark = pytest.mark.asyncio(loop_scope="module")


def report(answer: Any) -> dict[str, Any]:
    told: dict[str, Any] = answer.model_extra["agentmem"]
    return told


def said(text: str) -> Any:
    return {"role": "user", "content": text}


async def asked(sdk: openai.AsyncOpenAI, messages: list[Any], stream: bool) -> tuple[str, Any, dict[str, Any]]:
    if not stream:
        whole = await sdk.chat.completions.create(**MODEL, messages=messages, max_tokens=20)
        return whole.choices[0].message.content or "", whole.usage, report(whole)
    text, usage, told = "", None, {}
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    async for chunk in await sdk.chat.completions.create(**MODEL, messages=messages, max_tokens=20, **options):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
        told = (chunk.model_extra or {}).get("agentmem", told)
    return text, usage, told


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_remembered_without_any_header(sdk: openai.AsyncOpenAI, stream: bool) -> None:
    messages = [said(f"{FACT} The name of the dog is {'Rex' if stream else 'Tom'}.")]
    cached, agents, held = [], set(), 0
    for question in (QUESTION, "Where is the key?", QUESTION):
        text, usage, told = await asked(sdk, messages, stream)
        assert usage.prompt_tokens_details.cached_tokens == held, "all that was said before, and no token more"
        held = usage.total_tokens
        cached.append(usage.prompt_tokens_details.cached_tokens)
        agents.add(told["agent_id"])
        messages += [{"role": "assistant", "content": text}, said(question)]
    text, _, told = await asked(sdk, messages, stream)
    assert text == ANSWER
    assert 0 == cached[0] < cached[1] < cached[2]
    assert agents == {told["agent_id"]}


@pytest.mark.slow
async def test_a_response_is_followed_after_a_restart(stack: Stack, sdk: openai.AsyncOpenAI) -> None:
    asked: Any = {**MODEL, "max_output_tokens": 20}
    first = await sdk.responses.create(**asked, input="Listen: " + "The number of the locker is 417. " * 36)
    await stack.on_disk(report(first)["agent_id"])
    stack.kill("gateway", "worker", "store")
    await stack.up("store", "worker", "gateway")
    await stack.until_ready()
    follow: Any = {"input": "What is the number of the locker?", "previous_response_id": first.id}
    second = await sdk.responses.create(**asked, **follow)
    assert "417" in second.output_text
    assert report(second)["agent_id"] == report(first)["agent_id"]
    assert first.usage and report(second)["cached"] == {"warm": first.usage.total_tokens}
