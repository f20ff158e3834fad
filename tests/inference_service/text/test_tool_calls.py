"""How calls are written: every parser that mlx-lm knows, and what becomes of text that is no call."""

import importlib
import json
import pkgutil
import re
from typing import Any

import mlx_lm.tool_parsers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import jsontext
from agentmem.v1.inference_pb2 import ToolCall
from inference_service.families.chats import HELD_PARSERS, OBJECT, call_form
from inference_service.text.tool_calls import CallSyntax

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
ARGUMENTS = {"city": "Paris", "days": 3}
XML = (
    "<{0}arg_key>city</{0}arg_key><{0}arg_value>Paris</{0}arg_value>"
    "<{0}arg_key>days</{0}arg_key><{0}arg_value>3</{0}arg_value>"
)
WRITTEN = {
    "function_gemma": "call:get_weather{city:<escape>Paris<escape>,days:3}",
    "gemma4": 'call:get_weather{city:<|"|>Paris<|"|>,days:3}',
    "glm47": "get_weather" + XML.format(""),
    "json_tools": '\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n',
    "kimi_k2": '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 3}'
    "<|tool_call_end|>",
    "kimi_k3": '<|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
    '{"city": "Paris", "days": 3}<|close|>json<|sep|><|close|>call<|sep|>',
    "laguna": "get_weather" + XML.format(""),
    "longcat": "get_weather" + XML.format("longcat_"),
    "minicpm5": '"get_weather"><param name="city">Paris</param><param name="days">3</param>',
    "minimax_m2": '<invoke name="get_weather"><parameter name="city">Paris</parameter>'
    '<parameter name="days">3</parameter></invoke>',
    "mistral": 'get_weather[ARGS]{"city": "Paris", "days": 3}',
    "muse_spark": '<atem:invoke name="get_weather"><atem:parameter name="city">Paris</atem:parameter>'
    '<atem:parameter name="days">3</atem:parameter></atem:invoke>',
    "pythonic": '[get_weather(city="Paris", days=3)]',
    "qwen3_coder": "\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>",
}
"""The same call as each parser's models write it."""

PARSERS = sorted(module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__))


def syntax(name: str) -> CallSyntax:
    module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    return CallSyntax(name, module.tool_call_start.encode(), module.tool_call_end.encode(), module.parse_tool_call)


def returning(result: Any, name: str = "p") -> CallSyntax:
    return CallSyntax(name, b"<", b">", lambda _text, _tools: result)


@pytest.mark.parametrize("name", PARSERS)
def test_each_parser_of_mlx_lm_gives_the_call(name: str) -> None:
    (call,) = syntax(name).calls(WRITTEN[name].encode(), TOOLS)
    assert (call.name, json.loads(call.arguments_json)) == ("get_weather", ARGUMENTS)
    assert re.fullmatch(r"call_[0-9a-f]{24}|[0-9A-Za-z]{9}|functions\.get_weather:0", call.id)


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text(max_size=20) | st.text(alphabet='<>{}[]()":=,/|aA1. \n', max_size=30))
def test_no_text_breaks_a_parser(name: str, text: str) -> None:
    for call in syntax(name).calls(text.encode(), TOOLS):
        assert call.id
        assert call.name
        jsontext.parse("", call.arguments_json, dict)


@pytest.mark.parametrize(
    "result",
    [
        None,
        "f",
        {},
        {"name": "f", "arguments": [1]},
        {"name": "f", "arguments": "no JSON"},
        {"name": "f", "arguments": {"a": float("nan")}},
        {"name": "f", "arguments": {"a": {1, 2}}},
        {"name": "f", "arguments": {"a": "\ud800"}},
        {"name": "", "arguments": {}},
        {"name": 1, "arguments": {}},
        {"name": "\ud800", "arguments": {}},
        {"name": "f", "arguments": json.loads('{"a":' * 70 + "1" + "}" * 70)},
        [{"name": "f", "arguments": {}}, {"arguments": {}}],
        [],
    ],
)
def test_what_makes_no_sense_is_no_call(result: Any) -> None:
    assert returning(result).calls(b"x") == []


@pytest.mark.parametrize("arguments", [{"b": "ü", "a": 1}, '{"b":"\\u00fc","a":1}'])
def test_arguments_are_json_in_the_order_they_were_written(arguments: Any) -> None:
    (call,) = returning({"name": "f", "arguments": arguments}).calls(b"x")
    assert call.arguments_json == '{"b": "ü", "a": 1}'


@pytest.mark.parametrize("written", [{"name": "f"}, {"name": "f", "arguments": None}, {"name": "f", "arguments": ""}])
def test_a_call_without_arguments_has_none(written: Any) -> None:
    assert returning(written).calls(b"x")[0].arguments_json == "{}"


def test_ids_are_unique_and_the_models_own_where_they_can_be() -> None:
    plain, own = {"name": "f", "arguments": {}}, {"name": "f", "arguments": {}, "id": "mine"}
    calls = returning([own, own, plain, plain]).calls(b"x")
    assert calls[0] == ToolCall(id="mine", name="f", arguments_json="{}")
    assert len({call.id for call in calls}) == 4
    assert returning(own).calls(b"x", taken_ids={"mine"})[0].id != "mine"
    assert re.fullmatch("[0-9A-Za-z]{9}", returning(plain, "mistral").calls(b"x")[0].id), "its templates want that"


def test_the_parser_gets_the_tools_or_none() -> None:
    seen: list[Any] = []
    spy = CallSyntax("p", b"<", b">", lambda text, tools: seen.append((text, tools)))
    spy.calls(b"\xff", TOOLS)
    spy.calls(b"x")
    assert seen == [("\ufffd", TOOLS), ("x", None)]


def test_calls_must_begin_somewhere() -> None:
    with pytest.raises(ValueError, match="start"):
        CallSyntax("p", b"", b"", lambda _text, _tools: None)


def test_the_forms_that_calls_can_be_held_to() -> None:
    assert {name for name in PARSERS if call_form(name, "")} == {"json_tools", "kimi_k2", "mistral"} == {*HELD_PARSERS}
    assert call_form("json_tools", "") is OBJECT
    assert call_form("mistral", "[TOOL_CALLS]{{ name }}[ARGS]") not in (None, call_form("mistral", ""))
    assert call_form("mistral", "[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]") is None
