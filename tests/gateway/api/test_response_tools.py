"""Tools as requests for a response bring them: functions, namespaces, texts, and those of other servers."""

import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2
from gateway.api.exchange import Exchange
from tests.gateway.scripted import finished, started

from . import dialects

FUNCTION = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "d", "tools": [FUNCTION]}
PATCH = {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "grammar", "definition": "x"}}


def exchange(tools: list[Any], *items: Any, **fields: Any) -> Exchange:
    return dialects.exchange("responses", input=[{"role": "user", "content": "go"}, *items], tools=tools, **fields)


def offered(made: Exchange) -> list[Any]:
    return [tool["function"] for tool in json.loads(made.turns[0].messages.tools_json or "[]")]


def answered(made: Exchange, name: str, arguments: str) -> list[Any]:
    call = inference_pb2.ToolCall(id="call_1", name=name, arguments_json=arguments)
    delta = inference_pb2.GenerateResponse(delta=inference_pb2.Delta(tool_calls=[call]))
    for event in (started(), delta, finished()):
        made.answer.add(0, event)
    output: list[Any] = made.answer.body()["output"]
    return output


def test_namespaces_are_flat_for_the_model_and_whole_for_the_caller() -> None:
    made = exchange([NAMESPACE, FUNCTION])
    assert [tool["name"] for tool in offered(made)] == ["agents__spawn", "spawn"]
    (item,) = answered(made, "agents__spawn", '{"a": 1}')
    assert (item["type"], item["namespace"], item["name"], item["arguments"]) == (
        "function_call",
        "agents",
        "spawn",
        '{"a": 1}',
    )
    again = exchange([NAMESPACE], item, {"type": "function_call_output", "call_id": "call_1", "output": "done"})
    (call,) = json.loads(again.turns[0].messages.messages[1].tool_calls_json)
    assert call["function"] == {"name": "agents__spawn", "arguments": '{"a": 1}'}


def test_custom_tools_are_functions_of_a_text() -> None:
    made = exchange([PATCH])
    (tool,) = offered(made)
    assert tool["parameters"]["required"] == ["input"]
    assert "x" in tool["parameters"]["properties"]["input"]["description"]
    (item,) = answered(made, "patch", '{"input": "*** Begin"}')
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "*** Begin")
    again = exchange([PATCH], item, {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"})
    messages = again.turns[0].messages.messages
    (call,) = json.loads(messages[1].tool_calls_json)
    assert json.loads(call["function"]["arguments"]) == {"input": "*** Begin"}
    assert (messages[2].role, messages[2].content) == ("tool", "ok")


@pytest.mark.parametrize("arguments", ["{}", '{"text": "x"}', '{"input": 5}'])
def test_custom_tools_get_all_that_the_model_said_where_it_names_no_input(arguments: str) -> None:
    (item,) = answered(exchange([PATCH]), "patch", arguments)
    assert item["input"] == arguments


def test_events_of_custom_calls() -> None:
    made = exchange([PATCH])
    call = inference_pb2.ToolCall(id="call_1", name="patch", arguments_json='{"input": "abc"}')
    delta = inference_pb2.GenerateResponse(delta=inference_pb2.Delta(tool_calls=[call]))
    events = [event.data for each in (started(), delta) for event in made.answer.events(0, each)]
    kinds = [event["type"].removeprefix("response.") for event in events if isinstance(event, dict)]
    assert kinds[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]


def test_what_another_server_would_run_is_left_out_and_told() -> None:
    made = exchange(
        [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}, FUNCTION],
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    )
    assert [tool["name"] for tool in offered(made)] == ["spawn"]
    assert made.others == ["web_search", "image_generation", "web_search_call"]
    assert len(made.turns[0].messages.messages) == 1


def test_names_are_one_tools_each() -> None:
    with pytest.raises(InvalidArgument) as caught:
        exchange([FUNCTION, {**FUNCTION}])
    assert caught.value.field == "tools[1].name"
    with pytest.raises(InvalidArgument) as caught:
        exchange([NAMESPACE, {**NAMESPACE, "name": "agents__"}])
    assert caught.value.field == "tools[1].tools[0].name"
