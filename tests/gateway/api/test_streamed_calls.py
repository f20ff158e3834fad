"""Arguments of calls as they are generated, in the events of each dialect: nothing twice, and nothing left open."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.chat import ChatAnswer
from gateway.api.exchange import Answer
from gateway.api.messages_output import MessageAnswer
from gateway.api.openai_tools import Called
from gateway.api.responses_output import ResponseAnswer
from tests.gateway.scripted import finished, started

HEAD: dict[str, Any] = {"id": "resp_1", "model": "m", "store": True}


def part(identifier: str, arguments: str, name: str = "") -> inference_pb2.ToolCallPart:
    return inference_pb2.ToolCallPart(id=identifier, name=name, arguments_json=arguments)


def call(identifier: str, arguments: str, name: str = "look") -> inference_pb2.ToolCall:
    return inference_pb2.ToolCall(id=identifier, name=name, arguments_json=arguments)


def delta(*said: Any, text: str = "") -> inference_pb2.GenerateResponse:
    made = inference_pb2.Delta(text=text)
    for each in said:
        (made.tool_calls if isinstance(each, inference_pb2.ToolCall) else made.tool_call_parts).append(each)
    return inference_pb2.GenerateResponse(delta=made)


CALLS = [
    delta(part("a", '{"x"', "look"), text="Well."),
    delta(part("a", ": 1}")),
    delta(call("a", '{"x": 1}'), part("b", "{", "see")),
    delta(part("b", "}"), call("b", "{}", "see")),
    delta(call("c", '{"y": 2}', "go")),
]
BROKEN = [delta(part("a", '{"x"', "look")), delta(text='<c>{"x"</c>')]
JOINED = [delta(part("a", '{"x"', "look")), delta(part("a", ": 1"), text='<c>{"x"</c>')]
"""As a worker would not send it: the last part after the text that the call has become."""


def events(answer: Answer, deltas: Sequence[Any]) -> list[Any]:
    reason = types_pb2.FINISH_REASON_TOOL_CALLS
    said = [event for each in (started(), *deltas, finished(reason)) for event in answer.events(0, each)]
    return [event.data for event in [*said, *answer.closing()] if event.data != "[DONE]"]


def test_chat() -> None:
    found: dict[int, list[str]] = {}
    for event in events(ChatAnswer("c", 7, "m"), CALLS):
        for each in event["choices"][0]["delta"].get("tool_calls", ()) if event["choices"] else ():
            told = found.setdefault(each["index"], ["", ""])
            told[0] += each["function"].get("name", "")
            told[1] += each["function"]["arguments"]
    assert found == {0: ["look", '{"x": 1}'], 1: ["see", "{}"], 2: ["go", '{"y": 2}']}


@pytest.mark.parametrize("deltas", [CALLS, BROKEN, JOINED])
def test_messages(deltas: Any) -> None:
    blocks: dict[int, list[Any]] = {}
    for event in events(MessageAnswer("m", "m"), deltas):
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks[event["index"]] = [event["content_block"], "", False]
            case "content_block_delta":
                change = event["delta"]
                kind = {"text": "text_delta", "tool_use": "input_json_delta"}
                assert change["type"] == kind[blocks[event["index"]][0]["type"]]
                blocks[event["index"]][1] += change.get("partial_json") or change.get("text", "")
            case "content_block_stop":
                blocks[event["index"]][2] = True
    assert all(stopped for _, _, stopped in blocks.values())
    said = [(block["type"], text) for block, text, _ in blocks.values()]
    if deltas is CALLS:
        assert said == [("text", "Well."), ("tool_use", '{"x": 1}'), ("tool_use", "{}"), ("tool_use", '{"y": 2}')]
    else:
        assert said == [("tool_use", '{"x"'), ("text", '<c>{"x"</c>')]


@pytest.mark.parametrize("deltas", [CALLS, BROKEN, JOINED])
def test_responses(deltas: Any) -> None:
    """A call that turns out to be none is never done, and not in the response."""
    answer = ResponseAnswer(HEAD, "1", logprobs=False)
    items: dict[int, Any] = {}
    arguments: dict[str, str] = {}
    for event in events(answer, deltas):
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items[event["output_index"]] = None
            case "response.function_call_arguments.delta":
                arguments[event["item_id"]] = arguments.get(event["item_id"], "") + event["delta"]
            case "response.output_item.done":
                items[event["output_index"]] = event["item"]
            case "response.completed":
                assert event["response"]["output"] == [item for item in items.values() if item]
    done = [item for item in items.values() if item]
    for item in done:
        if item["type"] == "function_call":
            assert arguments[item["id"]] == item["arguments"]
    statuses = [(item["type"], item["status"]) for item in done]
    if deltas is CALLS:
        assert statuses == [("message", "completed"), *[("function_call", "completed")] * 3]
    else:
        assert statuses == [("message", "completed")]


@pytest.mark.parametrize("deltas", [BROKEN, JOINED])
def test_whole_answers_have_whole_calls_only(deltas: Any) -> None:
    for answer in (MessageAnswer("m", "m"), ResponseAnswer(HEAD, "1", logprobs=False), ChatAnswer("c", 7, "m")):
        for event in (started(), *deltas, finished()):
            copied = inference_pb2.GenerateResponse()
            copied.CopyFrom(event)
            answer.add(0, copied)
        body = json.dumps(answer.body())
        assert "look" not in body and "<c>{" in body


def test_custom_tools_are_told_whole() -> None:
    answer = ResponseAnswer(HEAD, "1", {"patch": Called("patch", custom=True)}, logprobs=False)
    text = json.dumps({"input": "abc"})
    deltas = [delta(part("a", text[:5], "patch")), delta(part("a", text[5:])), delta(call("a", text, "patch"))]
    told = [event["delta"] for event in events(answer, deltas) if event["type"].endswith("input.delta")]
    assert told == ["abc"]
