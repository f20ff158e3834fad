"""OpenAI's Agents SDK: what the guide's sample leaves out."""

import asyncio

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from expecting import KEY, TOO_LONG, V1, Alarm, get_weather, other_beginning, raised_by

set_tracing_disabled(True)
TOOL = function_tool(get_weather)


async def converse(make) -> None:
    session = SQLiteSession("a conversation")
    agent = Agent(
        name="marco",
        instructions=other_beginning(),
        model=make("demo"),
        model_settings=ModelSettings(temperature=0, include_usage=True),
    )
    first = await Runner.run(agent, "The key is in the cellar.", session=session)
    assert cached(first) == 0
    second = Runner.run_streamed(agent, "Where is the key?", session=session)
    deltas = [one async for one in second.stream_events() if one.type == "raw_response_event"]
    assert len(deltas) > 3
    assert "cellar" in second.final_output
    assert cached(second) > 0


def cached(result) -> int:
    return result.context_wrapper.usage.input_tokens_details.cached_tokens


async def with_tools(make) -> None:
    helped = Agent(name="helped", model=make("qwen"), tools=[TOOL])
    other = Agent(name="other", model=make("qwen"), handoffs=[helped], handoff_description="Knows nothing.")
    for agent in (helped, other.clone(tools=[TOOL])):
        result = await Runner.run(agent, "hi")
        assert result.final_output == "It rains in Paris!", result.final_output
        assert cached(result) > 0, "the second request of the run goes on from the first"
    told = Agent(name="told", model=make("qwen"), output_type=Alarm)
    assert isinstance((await Runner.run(told, "hi")).final_output, Alarm)


async def refused(make) -> None:
    for model, text, kind, words in (
        (make("demo", "wrong"), "hi", openai.AuthenticationError, "key"),
        (make("gpt-9"), "hi", openai.NotFoundError, "demo"),
        (make("demo"), TOO_LONG, openai.BadRequestError, "8192"),
    ):
        for run in (Runner.run, streamed):
            error = await raised_by(run(Agent(name="told", model=model), text))
            assert isinstance(error, kind) and words in str(error), repr(error)
            assert kind is not openai.BadRequestError or error.code == "context_length_exceeded"


async def streamed(agent, text):
    result = Runner.run_streamed(agent, text)
    async for _ in result.stream_events():
        pass
    return result


async def main() -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):

        def make(model, key=KEY, kind=kind):
            return kind(model, openai.AsyncOpenAI(base_url=V1, api_key=key, max_retries=0))

        await converse(make)
        await with_tools(make)
        await refused(make)


asyncio.run(main())
