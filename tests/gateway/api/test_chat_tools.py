"""Tools in chat completions: what is taken, how it is asked of the worker, how calls are told."""

import json
from typing import Any

import pytest

from agentmem.conversations import chain_of, message_hashes
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.chat import ChatAnswer

from ..scripted import delta, finished, started
from . import dialects

FUNCTION = {"name": "get_weather", "description": "How it is", "parameters": {"type": "object", "default": None}}
TOOL = {"type": "function", "function": FUNCTION}
USER = dialects.USER


def turn(**fields: Any) -> inference_pb2.GenerateRequest:
    return dialects.turn("chat", **fields)


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


def call(number: int) -> inference_pb2.ToolCall:
    return inference_pb2.ToolCall(id=f"call_{number}", name=f"f{number}", arguments_json=f'{{"n": {number}}}')


def called(text: str, *calls: inference_pb2.ToolCall) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text=text, token_ids=[1], tool_calls=calls))


END = finished(types_pb2.FINISH_REASON_TOOL_CALLS)


def message(*events: inference_pb2.GenerateResponse) -> Any:
    whole = ChatAnswer("chatcmpl-1", 7, "m")
    for event in (started(), *events, END):
        whole.add(0, event)
    (choice,) = whole.body()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    return choice["message"]


def test_calls_in_a_completion() -> None:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": f"f{n}", "arguments": f'{{"n": {n}}}'}}
        for n in (1, 2, 3)
    ]
    said = message(called("I look.", call(1)), called("", call(2), call(3)))
    assert said == {"role": "assistant", "content": "I look.", "refusal": None, "tool_calls": calls}
    assert message(called("", call(1)))["content"] is None


def test_the_answer_sent_back_is_the_conversation_that_the_worker_stores() -> None:
    said = message(delta("I "), called("look.", call(1)))
    sent = turn(messages=[USER, said, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}], tools=[TOOL])
    function = {"name": "f1", "arguments": '{"n": 1}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    stored = message_hashes([USER, {"role": "assistant", "content": "I look.", "tool_calls": calls}], tools=[TOOL])
    assert chain_of(sent.messages)[:2] == stored
