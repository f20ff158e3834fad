"""Each dialect's tool choice becomes the contract's, or is refused."""

from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2
from gateway.api.exchange import Exchange

from . import dialects

NAMES = ("look", "tell")


def chat(*, strict: tuple[str, ...] = (), tools: tuple[str, ...] = NAMES, **fields: Any) -> Exchange:
    functions = [{"name": name, "strict": name in strict} for name in tools]
    if isinstance(choice := fields.get("tool_choice"), dict):
        named = [{"type": "function", "function": {"name": name}} for name in choice["names"]]
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
        fields["tool_choice"] = allowed if choice.get("mode") else named[0]
    return dialects.exchange("chat", tools=[{"type": "function", "function": each} for each in functions], **fields)


def response(*, strict: tuple[str, ...] = (), tools: tuple[str, ...] = NAMES, **fields: Any) -> Exchange:
    if isinstance(choice := fields.get("tool_choice"), dict):
        named = [{"type": "function", "name": name} for name in choice["names"]]
        allowed = {"type": "allowed_tools", "mode": choice.get("mode"), "tools": named}
        fields["tool_choice"] = allowed if choice.get("mode") else named[0]
    offered = [{"type": "function", "name": name, "strict": name in strict} for name in tools]
    return dialects.exchange("responses", tools=offered, **fields)


def message(*, strict: tuple[str, ...] = (), tools: tuple[str, ...] = NAMES, **fields: Any) -> Exchange:
    choice, single = fields.get("tool_choice"), fields.get("parallel_tool_calls") is False
    if isinstance(choice, dict) and "mode" in choice:
        pytest.skip("this dialect has no such choice")
    [name] = choice["names"] if isinstance(choice, dict) else [""]
    kind = "tool" if name else {"required": "any"}.get(choice, choice or "auto")
    asked = {"type": kind, **({"name": name} if name else {"disable_parallel_tool_use": single})}
    offered = [{"name": each, "input_schema": {}, "strict": each in strict} for each in tools]
    return dialects.exchange("messages", tools=offered, tool_choice=asked)


DOORS = pytest.mark.parametrize("door", [chat, response, message])


@DOORS
@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, None),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, None),
        ({"tool_choice": "none", "strict": ("look",), "parallel_tool_calls": False}, None),
        ({"tools": (), "parallel_tool_calls": False}, None),
        ({"parallel_tool_calls": False}, {"single": True}),
        ({"strict": ("tell",)}, {"strict": ["tell"]}),
        ({"tool_choice": "required"}, {"required": True}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"required": True, "single": True}),
        ({"tool_choice": {"names": ["tell"]}}, {"required": True, "single": True, "names": ["tell"]}),
        ({"tool_choice": {"mode": "auto", "names": ["tell"]}}, {"names": ["tell"]}),
        ({"tool_choice": {"mode": "required", "names": ["tell"]}}, {"required": True, "names": ["tell"]}),
    ],
)
def test_what_calls_are_held_to(door: Any, fields: dict[str, Any], held: dict[str, Any] | None) -> None:
    (turn,) = door(**fields).turns
    assert turn.HasField("tool_choice") == (held is not None)
    assert turn.tool_choice == inference_pb2.ToolChoice(**(held or {}))
    assert "strict" not in turn.messages.tools_json, "which is not for the model"


@DOORS
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required", "tools": ()},
        {"tool_choice": {"names": ["look"]}, "tools": ()},
        {"tool_choice": {"names": ["other"]}},
        {"tool_choice": {"mode": "auto", "names": ["look", "other"]}},
    ],
)
def test_a_choice_of_no_tool_is_refused(door: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        door(**fields)
    assert caught.value.field == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    ["required", {"names": ["look"]}, {"mode": "auto", "names": ["look"]}, {"mode": "required", "names": NAMES}],
)
def test_a_response_tells_the_choice_as_it_was_made(choice: Any) -> None:
    body = response(tool_choice=choice, parallel_tool_calls=False).answer.body()
    named = [{"type": "function", "name": name} for name in choice["names"]] if isinstance(choice, dict) else []
    if named:
        choice = {"type": "allowed_tools", "mode": choice["mode"], "tools": named} if "mode" in choice else named[0]
    assert body["tool_choice"] == choice
    assert body["parallel_tool_calls"] is False
