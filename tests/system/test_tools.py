"""Calls of tools by a model that makes some: through the worker, and through OpenAI's SDK."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion

from agentmem.conversations import chain_of
from agentmem.v1 import agent_pb2, types_pb2
from tests.scripted_model import write_scripted
from tests.system.stack import Client, Stack, Turn, chat, hosting

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

TOOLS: list[Any] = [WEATHER]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """All three processes; the markers of calls are special tokens."""
    directory = write_scripted(tmp_path_factory.mktemp("scripted") / "m", special_markers=True)
    async with hosting(f"scripted={directory}", "store", "worker", "gateway") as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> Client:
    return await stack.client()


def asked(*said: tuple[str, str], tools: bool = True) -> types_pb2.Messages:
    messages = chat(*said)
    if tools:
        messages.tools_json = json.dumps([WEATHER])
    return messages


def arguments(turn: Turn) -> list[Any]:
    return [(call.name, json.loads(call.arguments_json)) for call in turn.calls]


async def test_calls_are_told_apart_and_replayed(client: Client) -> None:
    request: dict[str, Any] = {"messages": asked(("user", "both")), "tool_calls": True, "request_id": "r"}
    turn = await client.turn("both", **request, top_logprobs=0)
    assert arguments(turn) == [("get_time", {}), ("get_weather", {"city": "Rome", "days": 2})]
    assert turn.text == ""
    assert turn.finished.reason == types_pb2.FINISH_REASON_TOOL_CALLS
    assert len(turn.logprobs) == len(turn.token_ids) == turn.finished.usage.completion_tokens, "the calls' count too"
    assert len({call.id for call in turn.calls}) == 2
    again = await client.turn("both", **request, top_logprobs=0)
    assert again.finished.replayed
    assert (again.calls, again.text, again.token_ids) == (turn.calls, turn.text, turn.token_ids)
    assert again.finished.reason == types_pb2.FINISH_REASON_TOOL_CALLS


async def test_the_answer_of_a_tool_extends_the_ledger_and_finds_its_agent(client: Client, stack: Stack) -> None:
    first = await client.turn("found", messages=asked(("user", "hi")), tool_calls=True)
    assert (first.text, arguments(first)) == ("I look.", [("get_weather", {"city": "Paris"})])
    (call,) = first.calls
    messages = asked(("user", "hi"), ("assistant", first.text), ("tool", "rain"))
    function = {"name": call.name, "arguments": '{"city":"Paris"}'}
    messages.messages[1].tool_calls_json = json.dumps([{"id": call.id, "type": "function", "function": function}])
    messages.messages[2].tool_call_id = call.id

    async def found(of: types_pb2.Messages) -> tuple[str, int]:
        request = agent_pb2.FindAgentRequest(namespace="default", model_id="scripted", message_hashes=chain_of(of))
        response = await client.agents.FindAgent(request, timeout=10)
        return response.agent.key.agent_id, response.matched_messages

    assert await found(messages) == ("found", 2)
    other = types_pb2.Messages(messages=messages.messages)
    assert await found(other) == ("", 0), "without the tools it is another conversation"
    tokens = (await client.agent("found")).tokens
    second = await client.turn("found", messages=messages, tool_calls=True)
    assert (second.match, second.cached) == ("EXTEND", {"hot": tokens})
    assert (second.text, second.finished.reason) == ("It rains in Paris!", types_pb2.FINISH_REASON_STOP)


def cached(completion: ChatCompletion) -> int:
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    return completion.usage.prompt_tokens_details.cached_tokens or 0


async def test_the_sdk_calls_a_tool_and_tells_its_result(sdk: openai.AsyncOpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": "hi, how is the weather?"}]
    first = await sdk.chat.completions.create(model="scripted", messages=said, tools=TOOLS)
    assert first.usage is not None
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert cached(first) < first.usage.prompt_tokens, "at most what others' prompts have at the beginning, the tools"
    said += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = await sdk.chat.completions.create(model="scripted", messages=said, tools=TOOLS)
    assert second.choices[0].message.content == "It rains in Paris!"
    assert (second.choices[0].finish_reason, second.choices[0].message.tool_calls) == ("stop", None)
    assert cached(second) == first.usage.prompt_tokens + first.usage.completion_tokens, "the agent was found by content"
    said += [second.choices[0].message, {"role": "user", "content": "and now?"}]
    third = await sdk.chat.completions.create(model="scripted", messages=said, tools=TOOLS, tool_choice="auto")
    assert third.choices[0].finish_reason == "tool_calls"
    assert cached(third) > cached(second)


def result(call_id: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": "rain"}


async def test_responses_call_a_tool_and_are_told_its_result(sdk: openai.AsyncOpenAI) -> None:
    tools: Any = {"model": "scripted", "tools": [{"type": "function", **WEATHER["function"], "strict": False}]}
    question = {"role": "user", "content": "hi there, how is the weather?"}
    async with sdk.responses.stream(**tools, input=[question]) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.function_call_arguments.delta"]
        first = await stream.get_final_response()
    message, call = first.output
    assert (message.type, first.output_text) == ("message", "I look.")
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", "".join(deltas))
    assert json.loads(call.arguments) == {"city": "Paris"}
    assert first.usage is not None

    by_content: list[Any] = [question, *first.output, result(call.call_id)]
    whole = await sdk.responses.create(**tools, input=by_content)
    followed = await sdk.responses.create(**tools, input=[result(call.call_id)], previous_response_id=first.id)
    for second in (whole, followed):
        assert second.output_text == "It rains in Paris!"
        assert [item.type for item in second.output] == ["message"]
    assert whole.usage is not None and followed.usage is not None
    assert whole.usage.input_tokens_details.cached_tokens == first.usage.total_tokens, "the agent was found by content"
    assert whole.usage.input_tokens == followed.usage.input_tokens, "what is appended is what the whole chat would be"
    with pytest.raises(openai.BadRequestError) as untold:
        await sdk.responses.create(model="scripted", input="and now?", previous_response_id=followed.id)
    assert untold.value.param == "tools"
