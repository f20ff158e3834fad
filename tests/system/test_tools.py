"""Calls of tools by a model that makes some: through the worker, and through OpenAI's SDK."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentmem.conversations import chain_of
from agentmem.v1 import agent_pb2, model_pb2, types_pb2
from tests.scripted_model import write_scripted
from tests.system.stack import Client, Stack, Turn, chat, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """All three processes; the markers of calls are special tokens."""
    directory = write_scripted(tmp_path_factory.mktemp("scripted") / "m", special_markers=True)
    async with running(f"scripted={directory}", "store", "worker", "gateway") as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(scripted: Stack) -> Client:
    return await scripted.client()


def asked(*said: tuple[str, str], tools: bool = True) -> types_pb2.Messages:
    messages = chat(*said)
    if tools:
        messages.tools_json = json.dumps([WEATHER])
    return messages


def arguments(turn: Turn) -> list[Any]:
    return [(call.name, json.loads(call.arguments_json)) for call in turn.calls]


async def test_the_model_names_its_parser(client: Client) -> None:
    model = (await client.models.GetModel(model_pb2.GetModelRequest(), timeout=10)).model
    assert model.tool_parser == "json_tools"


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


async def test_unasked_calls_are_text(client: Client) -> None:
    turn = await client.turn("unasked", messages=asked(("user", "both")))
    assert turn.calls == []
    assert turn.text.startswith('<tool_call>{"name": "get_time"')
    assert turn.finished.reason == types_pb2.FINISH_REASON_STOP


async def test_what_the_parser_refuses_and_what_is_cut_short_is_text(client: Client) -> None:
    broken = await client.turn("broken", messages=asked(("user", "broken")), tool_calls=True)
    assert (broken.calls, broken.text) == ([], 'Well, <tool_call>{"name": get_weather}</tool_call>!')
    assert broken.finished.reason == types_pb2.FINISH_REASON_STOP
    short = await client.turn("short", messages=asked(("user", "hi")), tool_calls=True, max_tokens=6)
    assert (short.calls, short.text) == ([], 'I look.\n{"name": "get_weather", "arguments"')
    assert short.finished.reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_stop_string_inside_a_call_does_not_cut_it(client: Client) -> None:
    turn = await client.turn("stop", messages=asked(("user", "hi")), tool_calls=True, stop=["Paris"])
    assert arguments(turn) == [("get_weather", {"city": "Paris"})]
    assert turn.finished.stop_string == ""
    before = await client.turn("before", messages=asked(("user", "hi")), tool_calls=True, stop=["look"])
    assert (before.text, before.calls, before.finished.stop_string) == ("I ", [], "look")


async def test_the_answer_of_a_tool_extends_the_ledger_and_finds_its_agent(client: Client, scripted: Stack) -> None:
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
