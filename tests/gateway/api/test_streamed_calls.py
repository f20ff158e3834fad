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


def by_index(events: list[Any], first: str, change: str, last: str, index: str) -> dict[int, tuple[list[Any], bool]]:
    """Changes of parts that begin in order, and whether each has ended."""
    found: dict[int, tuple[list[Any], bool]] = {}
    for event in events:
        if event["type"] == first:
            assert event[index] == len(found)
            found[event[index]] = [], False
        elif event["type"].endswith(change):
            found[event[index]][0].append(event["delta"])
        elif event["type"] == last:
            found[event[index]] = found[event[index]][0], True
    return found


@pytest.mark.parametrize("deltas", [CALLS, BROKEN, JOINED])
def test_messages(deltas: Any) -> None:
    told = events(MessageAnswer("m", "m"), deltas)
    blocks = by_index(told, "content_block_start", "content_block_delta", "content_block_stop", "index")
    assert all(stopped for _, stopped in blocks.values())
    said = [
        "".join(each.get("partial_json") or each.get("text", "") for each in changes) for changes, _ in blocks.values()
    ]
    assert said == (["Well.", '{"x": 1}', "{}", '{"y": 2}'] if deltas is CALLS else ['{"x"', '<c>{"x"</c>'])


@pytest.mark.parametrize("deltas", [CALLS, BROKEN, JOINED])
def test_responses(deltas: Any) -> None:
    """A call that turns out to be none is never done, and not in the response."""
    told = events(ResponseAnswer(HEAD, "1", logprobs=False), deltas)
    items = by_index(told, "response.output_item.added", ".delta", "response.output_item.done", "output_index")
    said = ["".join(changes) for changes, done in items.values() if done]
    assert said == (["Well.", '{"x": 1}', "{}", '{"y": 2}'] if deltas is CALLS else ['<c>{"x"</c>'])
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == told[-1]["response"]["output"] and {item["status"] for item in done} == {"completed"}
    assert [item["arguments"] for item in done if item["type"] == "function_call"] == said[1:]


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
