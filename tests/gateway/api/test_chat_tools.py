"""Tools in chat completions: what is taken, how it is asked of the worker, how calls are told."""

import json
from typing import Any

import pytest

from agentmem.conversations import chain_of, message_hashes
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
