"""Calls of tools by a real worker, free and held: what the model samples fits, though it would say other things.

Arguments of the template reach it, and conversations that differ in them are two.
"""

import asyncio
import json
from functools import partial
from typing import Any

import openai
import pytest
import pytest_asyncio

from agentmem.conversations import chain_of
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from tests.json_schemas import Schema, fits
from tests.scripted_model import TEMPLATE, write_scripted
from tests.system.client import Client, Turn, chat
from tests.system.shared import of_module
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMETERS: dict[str, Schema] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"city": {"enum": ["Oslo", "Bern"]}},
    },
    "set_alarm": {
        "type": "object",
        "properties": {"at": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}},
        "required": ["at"],
        "additionalProperties": False,
    },
}
FUNCTIONS: list[dict[str, Any]] = [{"name": name, "parameters": schema} for name, schema in PARAMETERS.items()]
TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]
STRICT: list[Any] = [{"type": "function", "function": {**function, "strict": True}} for function in FUNCTIONS]
HI: list[Any] = [{"role": "user", "content": "hi"}]


_EFFORT = "<|im_start|>system\nEffort: {{ reasoning_effort | default('any') }}<|im_end|>\n{% if tools %}"
stack = of_module(
    "scripted",
    partial(write_scripted, special_markers=True, template=TEMPLATE.replace("{% if tools %}", _EFFORT, 1)),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> Client:
    return await stack.client()


def told(content: str = "hi") -> types_pb2.Messages:
    messages = chat(("user", content))
    messages.tools_json = json.dumps(TOOLS)
    return messages


async def held(client: Client, agent: str, content: str = "hi", seed: int = 1, **choice: Any) -> Turn:
    warm = types_pb2.Sampling(temperature=1.0, seed=seed)
    asked: Any = {"messages": told(content), "tool_calls": True, "tool_choice": inference_pb2.ToolChoice(**choice)}
    return await client.turn(agent, **asked, sampling=warm, request_id=f"{agent}-{seed}")


def fitting(turn: Turn) -> list[str]:
    assert all(fits(call.arguments_json, PARAMETERS[call.name]) for call in turn.calls), turn.calls
    return [call.name for call in turn.calls]


async def test_calls_are_told_apart_and_replayed(client: Client) -> None:
    request: dict[str, Any] = {"messages": told("both"), "tool_calls": True, "request_id": "r", "top_logprobs": 0}
    turn = await client.turn("both", **request)
    said = [(call.name, json.loads(call.arguments_json)) for call in turn.calls]
    assert said == [("get_time", {}), ("get_weather", {"city": "Rome", "days": 2})]
    assert (turn.text, turn.finished.reason) == ("", types_pb2.FINISH_REASON_TOOL_CALLS)
    assert len(turn.logprobs) == len(turn.token_ids) == turn.finished.usage.completion_tokens, "the calls' count too"
    assert len({call.id for call in turn.calls}) == 2
    again = await client.turn("both", **request)
    assert again.finished.replayed
    assert (again.calls, again.text, again.token_ids) == (turn.calls, turn.text, turn.token_ids)
    assert again.finished.reason == types_pb2.FINISH_REASON_TOOL_CALLS


async def test_the_answer_of_a_tool_extends_the_ledger_and_finds_its_agent(client: Client) -> None:
    first = await client.turn("found", messages=told(), tool_calls=True)
    (call,) = first.calls
    assert (first.text, call.name, json.loads(call.arguments_json)) == ("I look.", "get_weather", {"city": "Paris"})
    messages = told()
    function = {"name": call.name, "arguments": '{"city":"Paris"}'}
    calls = json.dumps([{"id": call.id, "type": "function", "function": function}])
    messages.messages.add(role="assistant", content=first.text, tool_calls_json=calls)
    messages.messages.add(role="tool", tool_call_id=call.id, content="rain")

    async def found(of: types_pb2.Messages) -> tuple[str, int]:
        request = agent_pb2.FindAgentRequest(namespace="default", model_id="scripted", message_hashes=chain_of(of))
        response = await client.agents.FindAgent(request, timeout=10)
        return response.agent.key.agent_id, response.matched_messages

    assert await found(messages) == ("found", 2)
    assert await found(types_pb2.Messages(messages=messages.messages)) == ("", 0), "without the tools it is another"
    tokens = (await client.agent("found")).tokens
    second = await client.turn("found", messages=messages, tool_calls=True)
    assert (second.match, second.cached) == ("EXTEND", {"hot": tokens})
    assert (second.text, second.finished.reason) == ("It rains in Paris!", types_pb2.FINISH_REASON_STOP)


async def test_a_call_that_the_model_opens_by_itself_fits_where_its_own_would_not(client: Client) -> None:
    """It calls get_weather for Paris, a city that the schema does not have."""
    turn = await held(client, "auto", strict=["get_weather"])
    assert turn.text == "I look."
    assert fitting(turn)[0] == "get_weather"
    assert turn.finished.reason == types_pb2.FINISH_REASON_TOOL_CALLS


@pytest.mark.slow
async def test_required_calls_come_at_once_and_only_from_the_tools_that_are_named(client: Client) -> None:
    turns = await asyncio.gather(
        *(held(client, f"required-{seed}", seed=seed, required=True) for seed in range(4)),
        *(
            held(client, f"alarm-{seed}", seed=seed, required=True, single=True, names=["set_alarm"])
            for seed in range(4)
        ),
    )
    assert all(turn.text == "" and turn.calls for turn in turns)
    assert {name for turn in turns[:4] for name in fitting(turn)} <= PARAMETERS.keys()
    assert [fitting(turn) for turn in turns[4:]] == [["set_alarm"]] * 4
    again = await held(client, "required-1", seed=1, required=True)
    assert again.finished.replayed
    assert again.calls == turns[1].calls


@pytest.mark.slow
async def test_the_sdk_requires_names_and_limits_calls(sdk: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "scripted", "messages": HI, "seed": 5}
    for tools, fields in (
        (TOOLS, {"tool_choice": "required"}),
        (TOOLS, {"tool_choice": {"type": "function", "function": {"name": "set_alarm"}}}),
        (TOOLS, {"parallel_tool_calls": False}),
        (STRICT, {}),
    ):
        answer = await sdk.chat.completions.create(**asked, tools=tools, **fields)
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls", fields
        assert bool(message.content) == ("tool_choice" not in fields)
        for call in message.tool_calls or ():
            assert call.type == "function"
            assert fits(call.function.arguments, PARAMETERS[call.function.name]), call
        assert len(message.tool_calls or ()) == 1 or fields.get("tool_choice") == "required" or tools is STRICT
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a", "b"]}, "strict": True}}
    either = await sdk.chat.completions.create(**asked, tools=STRICT, response_format=wanted)
    message = either.choices[0].message
    assert message.tool_calls or fits(message.content or "", {"enum": ["a", "b"]})


async def test_conversations_that_differ_in_the_templates_arguments_are_two(sdk: openai.AsyncOpenAI) -> None:
    async def answer(said: list[Any], **fields: Any) -> tuple[str, int, int]:
        made = await sdk.chat.completions.create(model="scripted", messages=said, **fields)
        assert made.usage is not None and made.usage.prompt_tokens_details is not None
        agent = (made.model_extra or {})["agentmem"]["agent_id"]
        return agent, made.usage.total_tokens, made.usage.prompt_tokens_details.cached_tokens or 0

    said: list[Any] = [{"role": "user", "content": "what is an effort?"}]
    following = [*said, {"role": "assistant", "content": "Nobody knows."}, {"role": "user", "content": "and now?"}]
    low: dict[str, Any] = {"reasoning_effort": "low", "service_tier": "flex", "store": True}
    high: dict[str, Any] = {"extra_body": {"chat_template_kwargs": {"reasoning_effort": "high"}}}
    first = {name: await answer(said, **fields) for name, fields in {"low": low, "high": high}.items()}
    second = {name: await answer(following, **fields) for name, fields in {"low": low, "high": high}.items()}
    assert first["low"][0] != first["high"][0]
    for name in ("low", "high"):
        assert second[name][0] == first[name][0], "each is found again"
        assert second[name][2] == first[name][1], "with all of its memory"
