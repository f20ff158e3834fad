"""Tools in chat completions: what is taken, how it is asked of the worker, how calls are told."""

import json
from typing import Any

import pytest

from agentmem.conversations import chain_of, message_hashes
from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.chat import ChatAnswer, ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
from gateway.api.validation import parse_body

from ..scripted import delta, finished, started

FUNCTION = {"name": "get_weather", "description": "How it is", "parameters": {"type": "object", "default": None}}
TOOL = {"type": "function", "function": FUNCTION}
USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ChatRequest:
    return parse_body(json.dumps({"model": "m", "messages": [USER], **fields}).encode(), ChatRequest)


def turn(**fields: Any) -> inference_pb2.GenerateRequest:
    return chat_exchange(parse(**fields), Incoming("ns", "", "0f", 7)).turns[0]


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**FUNCTION, **fields}}


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}, {"tool_choice": None}])
def test_tools_are_rendered_and_calls_told_apart(fields: dict[str, Any]) -> None:
    request = turn(tools=[TOOL], **fields)
    assert request.tool_calls
    assert json.loads(request.messages.tools_json) == [TOOL], "a null inside a schema is the schema's"


def test_what_a_definition_leaves_open_is_left_out() -> None:
    request = turn(tools=[tool(description=None, parameters=None, strict=False), tool(strict=None)])
    bare = {"type": "function", "function": {"name": "get_weather"}}
    assert json.loads(request.messages.tools_json) == [bare, TOOL]


@pytest.mark.parametrize(
    "fields", [{"tools": [TOOL], "tool_choice": "none"}, {"tools": []}, {"tools": None, "tool_choice": "auto"}, {}]
)
def test_a_model_that_must_not_call_is_not_told_of_tools(fields: dict[str, Any]) -> None:
    request = turn(**fields)
    assert not request.tool_calls
    assert not request.messages.HasField("tools_json")


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"tool_choice": "some"}, "tool_choice", ""),
        ({"tool_choice": 5}, "tool_choice", "required"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type", "not supported here"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "is required"),
        ({"tool_choice": {"type": "function", "function": {"name": ""}}}, "tool_choice.function.name", ""),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "is required"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", ""),
        ({"tools": [tool(strict=1)]}, "tools[0].function.strict", ""),
        ({"tools": [TOOL, {"type": "custom", "custom": {}}]}, "tools[1].type", ""),
        ({"tools": [tool(name="")]}, "tools[0].function.name", ""),
        ({"tools": [tool(name="x" * 129)]}, "tools[0].function.name", ""),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", ""),
        ({"tools": "x"}, "tools", ""),
        ({"functions": [FUNCTION]}, "functions", "not supported: name them in tools"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(**fields)
    assert caught.value.field == field
    assert why in caught.value.problem


def call(number: int) -> inference_pb2.ToolCall:
    return inference_pb2.ToolCall(id=f"call_{number}", name=f"f{number}", arguments_json=f'{{"n": {number}}}')


def called(text: str, *calls: inference_pb2.ToolCall) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text=text, token_ids=[1], tool_calls=calls))


END = finished(types_pb2.FINISH_REASON_TOOL_CALLS)


def answer(choices: int = 1) -> ChatAnswer:
    return ChatAnswer("chatcmpl-1", 7, "m", per_prompt=choices, logprobs=False)


def test_calls_in_a_completion() -> None:
    whole = answer()
    for event in (started(), called("I look.", call(1)), called("", call(2), call(3)), END):
        whole.add(0, event)
    choice = whole.body()["choices"][0]
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": f"f{n}", "arguments": f'{{"n": {n}}}'}}
        for n in (1, 2, 3)
    ]
    assert choice["message"] == {"role": "assistant", "content": "I look.", "refusal": None, "tool_calls": calls}
    assert choice["finish_reason"] == "tool_calls"


def test_without_text_the_content_is_null() -> None:
    whole = answer()
    for event in (started(), called("", call(1)), END):
        whole.add(0, event)
    assert whole.body()["choices"][0]["message"]["content"] is None


def test_calls_in_chunks_are_numbered_per_choice() -> None:
    stream = answer(2)
    events = [
        (0, started()),
        (1, started()),
        (0, called("x", call(1))),
        (1, called("", call(2))),
        (0, called("", call(3))),
    ]
    chunks = [said.data for choice, event in events for said in stream.events(choice, event)]
    deltas = [(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in chunks if isinstance(c, dict)]

    def parts(index: int, number: int) -> list[dict[str, Any]]:
        head = {"index": index, "id": f"call_{number}", "type": "function"}
        return [
            {"tool_calls": [{**head, "function": {"name": f"f{number}", "arguments": ""}}]},
            {"tool_calls": [{"index": index, "function": {"arguments": f'{{"n": {number}}}'}}]},
        ]

    assert deltas[2:] == [
        (0, {"content": "x"}),
        *((0, part) for part in parts(0, 1)),
        *((1, part) for part in parts(0, 2)),
        *((0, part) for part in parts(1, 3)),
    ]
    (last,) = stream.events(0, END)
    assert isinstance(last.data, dict)
    assert last.data["choices"][0]["finish_reason"] == "tool_calls"


def test_the_answer_sent_back_is_the_conversation_that_the_worker_stores() -> None:
    whole = answer()
    for event in (started(), delta("I "), called("look.", call(1)), END):
        whole.add(0, event)
    message = whole.body()["choices"][0]["message"]
    sent = turn(messages=[USER, message, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}], tools=[TOOL])
    function = {"name": "f1", "arguments": '{"n": 1}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    stored = message_hashes([USER, {"role": "assistant", "content": "I look.", "tool_calls": calls}], tools=[TOOL])
    assert chain_of(sent.messages)[:2] == stored
