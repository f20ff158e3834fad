"""LangChain and LangGraph: what the guide's samples leave out."""

import asyncio

import anthropic
import openai
from expecting import KEY, TOO_LONG, URL, V1, Alarm, get_weather, other_beginning, raised
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

OPENAI = {"base_url": V1, "api_key": KEY, "max_retries": 0, "stream_usage": True}
ANTHROPIC = {"base_url": URL, "api_key": KEY, "max_retries": 0, "max_tokens": 1000}
CHATS = {
    "openai": lambda model, **more: ChatOpenAI(model=model, **{**OPENAI, **more}),
    "responses": lambda model, **more: ChatOpenAI(model=model, use_responses_api=True, **{**OPENAI, **more}),
    "anthropic": lambda model, **more: ChatAnthropic(model=model, **{**ANTHROPIC, **more}),
}


def cached(answer: AIMessage) -> int:
    return answer.usage_metadata["input_token_details"]["cache_read"]


async def converse(chat) -> None:
    said = [SystemMessage(other_beginning()), HumanMessage("The key is in the cellar.")]
    first = await chat.ainvoke(said)
    assert cached(first) == 0
    whole = None
    async for chunk in chat.astream([*said, first, HumanMessage("Where is the key?")]):
        whole = chunk if whole is None else whole + chunk
    assert "cellar" in whole.text, whole.text
    assert cached(whole) > 0


def with_tools(chat) -> None:
    told = [HumanMessage("How is the weather?")]
    for model in (
        chat.bind_tools([get_weather]),
        chat.bind_tools([get_weather], tool_choice="get_weather", strict=True),
    ):
        for answer in (model.invoke(told), sum_of(model.stream(told))):
            (call,) = answer.tool_calls
            assert (call["name"], call["args"]["city"] in ("Paris", "Rome")) == ("get_weather", True)
            after = chat.bind_tools([get_weather]).invoke([*told, answer, ToolMessage("rain", tool_call_id=call["id"])])
            assert after.text == "It rains in Paris!", after
            assert cached(after) > 0
    assert isinstance(chat.with_structured_output(Alarm, method="json_schema").invoke("hi"), Alarm)


def sum_of(chunks):
    first, *others = chunks
    for chunk in others:
        first += chunk
    return first


def refused(name: str) -> None:
    make, sdk = CHATS[name], anthropic if name == "anthropic" else openai
    assert isinstance(raised(lambda: make("demo", api_key="wrong").invoke("hi")), sdk.AuthenticationError)
    error = raised(lambda: make("gpt-9").invoke("hi"))
    assert isinstance(error, sdk.NotFoundError) and "demo" in str(error), error
    error = raised(lambda: make("demo").invoke(TOO_LONG))
    assert isinstance(error, ContextOverflowError) and "8192" in str(error), repr(error)
    error = raised(lambda: list(make("demo").stream(TOO_LONG)))
    assert isinstance(error, ContextOverflowError), repr(error)


async def main() -> None:
    for make in CHATS.values():
        await converse(make("demo", temperature=0))


asyncio.run(main())
for name, make in CHATS.items():
    with_tools(make("qwen"))
    refused(name)
