"""Frameworks in the modes that they have by default, against a real stack.

The model says what its script has it say, which fits nothing that is asked of it; what it is held to fits. Each test
imports its framework: all of them together take a third of what collecting all tests takes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tests.scripted_model import write_scripted
from tests.system.stack import hosting

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Alarm(BaseModel):
    """An alarm."""

    model_config = ConfigDict(extra="forbid")

    at: str = Field(pattern="^[0-2][0-9]:[0-5][0-9]$")
    days: list[int] = Field(max_length=2)


City = Literal["Paris", "Rome"]
CITIES: list[City] = []
"""What the tool was called for."""


def get_weather(city: City) -> str:
    """How the weather is.

    Args:
        city: Where.
    """
    CITIES.append(city)
    return "rain"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    directory = write_scripted(tmp_path_factory.mktemp("scripted") / "m", special_markers=True)
    async with hosting(f"scripted={directory}", "store", "worker", "gateway") as stack:
        yield f"{stack.url}/v1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(url: str) -> AsyncIterator[ChatOpenAI]:
    from langchain_openai import ChatOpenAI

    async with openai.DefaultAsyncHttpxClient() as http:
        yield ChatOpenAI(
            model="scripted", base_url=url, api_key=SecretStr("none"), max_retries=0, http_async_client=http
        )


@pytest.mark.slow
async def test_instructor(sdk: openai.AsyncOpenAI) -> None:
    """It names the function that the model has to call."""
    import instructor

    client = instructor.from_openai(sdk)
    assert client.mode is instructor.Mode.TOOLS
    for _ in range(3):
        alarm = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hi"}], response_model=Alarm, max_retries=1
        )
        assert isinstance(alarm, Alarm)


@pytest.mark.slow("True")
@pytest.mark.parametrize("responses", [False, True])
async def test_langchain_with_structured_output(chat: ChatOpenAI, responses: bool) -> None:
    model = chat.model_copy(update={"use_responses_api": responses})
    assert isinstance(await model.with_structured_output(Alarm).ainvoke("hi"), Alarm)
    assert isinstance(await model.with_structured_output(Alarm, method="function_calling").ainvoke("hi"), Alarm)


async def test_langchain_calls_a_tool_and_tells_its_result(chat: ChatOpenAI) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    model = chat.bind_tools([get_weather])
    answer = await model.ainvoke("hi")
    assert isinstance(answer, AIMessage)
    (call,) = answer.tool_calls
    assert (answer.text, call["name"], call["args"]) == ("I look.", "get_weather", {"city": "Paris"})
    said = [HumanMessage("hi"), answer, ToolMessage("rain", tool_call_id=call["id"] or "")]
    assert (await model.ainvoke(said)).text == "It rains in Paris!"
    forced = chat.bind_tools([get_weather], tool_choice="get_weather", strict=True, parallel_tool_calls=False)
    only = await forced.ainvoke("hi")
    assert isinstance(only, AIMessage)
    assert [one["name"] for one in only.tool_calls] == ["get_weather"]


@pytest.mark.slow
@pytest.mark.parametrize("responses", [False, True])
async def test_pydantic_ai(sdk: openai.AsyncOpenAI, responses: bool) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if responses else OpenAIChatModel
    model = kind("scripted", provider=OpenAIProvider(openai_client=sdk))
    assert isinstance((await Agent(model, output_type=Alarm).run("hi")).output, Alarm)
    helped = Agent(model, tools=[get_weather])
    CITIES.clear()
    assert (await helped.run("hi")).output == "It rains in Paris!"
    assert CITIES


@pytest.mark.slow
async def test_openai_agents(sdk: openai.AsyncOpenAI) -> None:
    """They make every tool and every type of an output strict."""
    from agents import Agent as OpenAIAgent
    from agents import OpenAIResponsesModel, RunConfig, Runner, function_tool

    untraced, model = RunConfig(tracing_disabled=True), OpenAIResponsesModel("scripted", sdk)
    told = OpenAIAgent(name="told", instructions="Be kind.", model=model, output_type=Alarm)
    assert isinstance((await Runner.run(told, "hi", run_config=untraced)).final_output, Alarm)
    helped = OpenAIAgent(name="helped", model=model, tools=[function_tool(get_weather)])
    CITIES.clear()
    result = await Runner.run(helped, "hi", run_config=untraced)
    assert result.final_output == "It rains in Paris!"
    assert CITIES
    streamed = Runner.run_streamed(helped, "hi", run_config=untraced)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "run_item_stream_event" in kinds
    assert streamed.final_output == "It rains in Paris!"
    both = OpenAIAgent(name="both", model=model, tools=[function_tool(get_weather)], output_type=Alarm)
    assert isinstance((await Runner.run(both, "hi", run_config=untraced)).final_output, Alarm)
