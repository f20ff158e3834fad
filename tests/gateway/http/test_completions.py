"""Completions through the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai

from agentmem.v1 import inference_pb2

from ..scripted import ScriptedWorker, delta, finished, started


async def echo(request: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
    """Says what it was asked, so that mixed up choices show."""
    yield started()
    for character in f"{request.prompt}{request.sampling.seed}":
        yield delta(character)
    yield finished()


async def test_completion(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    headers = {"X-Agent-ID": "bob", "Idempotency-Key": "turn-1"}
    answer = await sdk.completions.create(model="demo", prompt="hi", extra_headers=headers)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello 🌍", "stop")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 12
    (request,) = worker.generated
    assert (request.key.agent_id, request.request_id, request.prompt, request.max_tokens) == ("bob", "turn-1", "hi", 16)
    await sdk.completions.create(model="demo", prompt="hi")
    assert worker.requests[-1].key.agent_id == "", "nothing is kept"


async def test_choices_come_prompt_by_prompt(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    worker.script = echo
    asked: Any = {"model": "demo", "prompt": ["a", "b", "c"], "n": 2, "seed": 5}
    wanted = ["a5", "a6", "b5", "b6", "c5", "c6"]
    answer = await sdk.completions.create(**asked)
    assert [choice.text for choice in answer.choices] == wanted
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (60, 18)
    texts = [""] * 6
    async for chunk in await sdk.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        usage = chunk.usage
    assert texts == wanted
    assert usage is not None and usage.prompt_tokens == 60
