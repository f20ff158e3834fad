import json
from typing import Any

import pytest

from agentmem.v1 import inference_pb2
from gateway.api.exchange import Exchange, Incoming
from gateway.api.messages import messages_exchange, to_count
from gateway.api.messages_schema import CountTokensRequest, MessagesRequest

USER = {"role": "user", "content": "hi"}
TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]


def exchange(**fields: Any) -> Exchange:
    asked = {"model": "org/m", "max_tokens": 5, "messages": [USER], **fields}
    return messages_exchange(MessagesRequest.model_validate(asked), Incoming("ns", "turn-1", "abc", 7))


def translate(**fields: Any) -> inference_pb2.GenerateRequest:
    (turn,) = exchange(**fields).turns
    return turn


def test_sampling() -> None:
    sampling = translate().sampling
    assert not sampling.HasField("temperature")
    assert not sampling.HasField("top_p")
    assert not sampling.HasField("top_k")
    sampling = translate(temperature=0, top_p=0.5, top_k=7).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 7)


@pytest.mark.parametrize(
    ("fields", "told_apart"),
    [
        ({}, False),
        ({"tools": []}, False),
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": {"type": "auto"}}, True),
        ({"tools": TOOLS, "tool_choice": {"type": "none"}}, False),
        ({"tool_choice": {"type": "auto"}}, False),
    ],
)
def test_tools(fields: dict[str, Any], told_apart: bool) -> None:
    request = translate(**fields)
    assert request.tool_calls == told_apart
    assert request.messages.HasField("tools_json") == told_apart


def test_effort_reaches_the_template() -> None:
    request = translate(output_config={"effort": "low"})
    assert json.loads(request.messages.template_arguments_json) == {"reasoning_effort": "low"}
    assert not translate().messages.HasField("template_arguments_json")


def test_a_format() -> None:
    schema = {"type": "object", "properties": {"é": {}}}
    asked = translate(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(asked.json_schema) == schema
    assert not translate(output_config={}).HasField("json_schema")
    assert not translate().HasField("json_schema")


def test_counting_asks_for_the_same_prompt() -> None:
    prompt = {"model": "org/m", "messages": [USER], "system": "s", "tools": TOOLS}
    counted = to_count(CountTokensRequest.model_validate(prompt), "ns")
    assert (counted.key.namespace, counted.key.model_id) == ("ns", "org/m")
    assert counted.messages == translate(**prompt).messages
