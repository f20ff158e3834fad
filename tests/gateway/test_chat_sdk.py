"""Chat completions through the official SDK."""

import openai

from .scripted import ScriptedWorker

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_completion(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="demo", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello 🌍"
    assert answer.usage.prompt_tokens_details.cached_tokens == 12


async def test_stream(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello 🌍"
    assert chunks[-1].usage.completion_tokens == 3
