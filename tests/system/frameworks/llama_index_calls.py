"""LlamaIndex: what the guide's sample leaves out."""

import asyncio

import openai
from expecting import KEY, TOO_LONG, V1, Alarm, get_weather, other_beginning, raised
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike


def make(model: str, **more: object) -> OpenAILike:
    known = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 8192, "max_retries": 0}
    return OpenAILike(model=model, api_base=V1, **{"api_key": KEY, **known, **more})


def cached(answer) -> int:
    return answer.raw.usage.prompt_tokens_details.cached_tokens


async def converse() -> None:
    llm = make("demo", temperature=0, additional_kwargs={"stream_options": {"include_usage": True}})
    plain = make("demo", temperature=0)
    said = [ChatMessage(role="system", content=other_beginning())]
    said += [ChatMessage(role="user", content="The key is in the cellar.")]
    first = await plain.achat(said)
    assert cached(first) == 0
    said += [first.message, ChatMessage(role="user", content="Where is the key?")]
    chunks = list(llm.stream_chat(said))
    assert "cellar" in chunks[-1].message.content
    assert cached(chunks[-1]) > 0
    assert "cellar" in (await plain.achat(said)).message.content


async def with_tools() -> None:
    llm, tool = make("qwen", strict=True), FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([tool], user_msg="hi")
    (call,) = llm.get_tool_calls_from_response(answer)
    assert (call.tool_name, list(call.tool_kwargs)) == ("get_weather", ["city"])
    (forced,) = llm.get_tool_calls_from_response(llm.chat_with_tools([tool], user_msg="hi", tool_required=True))
    assert forced.tool_name == "get_weather"
    assert llm.predict_and_call([tool], user_msg="hi").response == "rain"
    agent = FunctionAgent(tools=[tool], llm=llm)
    context = Context(agent)
    run = agent.run("hi", ctx=context)
    streamed = "".join([event.delta async for event in run.stream_events() if isinstance(event, AgentStream)])
    assert str(await run) == "It rains in Paris!"
    assert streamed.endswith("It rains in Paris!")
    structured = make("qwen", should_use_structured_outputs=True)
    assert isinstance(structured.as_structured_llm(Alarm).complete("hi").raw, Alarm)


def refused() -> None:
    hi = [ChatMessage(role="user", content="hi")]
    assert isinstance(raised(lambda: make("demo", api_key="wrong").chat(hi)), openai.AuthenticationError)
    error = raised(lambda: make("gpt-9").chat(hi))
    assert isinstance(error, openai.NotFoundError) and "demo" in str(error)
    error = raised(lambda: make("demo").chat([ChatMessage(role="user", content=TOO_LONG)]))
    assert isinstance(error, openai.BadRequestError) and error.code == "context_length_exceeded"
    error = raised(lambda: list(make("demo").stream_chat([ChatMessage(role="user", content=TOO_LONG)])))
    assert isinstance(error, openai.BadRequestError) and error.code == "context_length_exceeded"


async def main() -> None:
    await converse()
    await with_tools()


asyncio.run(main())
refused()
