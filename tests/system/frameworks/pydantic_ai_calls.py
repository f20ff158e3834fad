"""pydantic-ai: what the guide's sample leaves out."""

import asyncio

from expecting import KEY, TOO_LONG, URL, V1, Alarm, get_weather, other_beginning, raised_by
from pydantic_ai import Agent
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def of_openai(kind):
    return lambda model, key=KEY: kind(model, provider=OpenAIProvider(base_url=V1, api_key=key))


def of_anthropic(model, key=KEY):
    return AnthropicModel(model, provider=AnthropicProvider(base_url=URL, api_key=key))


async def converse(make) -> None:
    agent = Agent(make("demo"), system_prompt=other_beginning(), model_settings={"temperature": 0.0})
    first = await agent.run("The key is in the cellar.")
    assert first.usage.cache_read_tokens == 0
    async with agent.run_stream("Where is the key?", message_history=first.all_messages()) as stream:
        said = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
        assert "cellar" in "".join(said)
        assert stream.usage.cache_read_tokens > 0, stream.usage


async def with_tools(make) -> None:
    helped = Agent(make("qwen"), tools=[get_weather])
    result = await helped.run("hi")
    assert result.output == "It rains in Paris!"
    assert any(part.part_kind == "tool-return" for message in result.all_messages() for part in message.parts)
    assert result.usage.cache_read_tokens > 0, "the second request of the run goes on from the first"
    async with helped.run_stream_events("hi") as events:
        *_, last = [event async for event in events]
    assert last.result.output == "It rains in Paris!"


async def refused(make) -> None:
    too_long = ModelHTTPError if make is of_anthropic else ModelContextWindowExceededError
    for model, text, kind, words in (
        (make("demo", "wrong"), "hi", ModelAuthenticationError, "key"),
        (make("gpt-9"), "hi", ModelNotFoundError, "demo"),
        (make("demo"), TOO_LONG, too_long, "8192"),
    ):
        error = await raised_by(Agent(model).run(text))
        assert isinstance(error, kind) and words in str(error), repr(error)


async def main() -> None:
    for make in (of_openai(OpenAIChatModel), of_openai(OpenAIResponsesModel), of_anthropic):
        await converse(make)
        await with_tools(make)
        await refused(make)
    for make in (of_openai(OpenAIChatModel), of_openai(OpenAIResponsesModel)):
        assert isinstance((await Agent(make("qwen"), output_type=Alarm).run("hi")).output, Alarm)


asyncio.run(main())
