import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import parse_body

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ResponseRequest:
    return parse_body(json.dumps({"model": "m", "input": "hi", **fields}).encode(), ResponseRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": ""},
        {"input": [USER]},
        {"instructions": "be nice", "max_output_tokens": 1, "temperature": 0, "top_p": 1},
        {"previous_response_id": "resp_1", "store": False},
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"text": {"format": {"type": "text"}, "verbosity": None}},
        {"text": {"format": {"type": "json_object"}}},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}},
        {"top_logprobs": 20, "include": ["message.output_text.logprobs"]},
        {"parallel_tool_calls": True, "truncation": "disabled", "background": False, "service_tier": "auto"},
        {"service_tier": "flex", "prompt_cache_retention": "24h", "prompt_cache_options": {}, "max_tool_calls": 1},
        {"include": ["reasoning.encrypted_content"], "text": {"verbosity": "medium"}, "parallel_tool_calls": False},
        {"reasoning": {"effort": "low", "summary": "auto", "generate_summary": None}},
        {"tools": [{**TOOL, "strict": True}], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [{**TOOL, "strict": False, "defer_loading": None}], "tool_choice": "none"},
        {"client_metadata": {"x": "y"}, "truncation": "auto", "text": {"verbosity": "low"}, "max_tool_calls": 0},
        {"input": [], "include": ["file_search_call.results"], "tool_choice": "any", "tools": [TOOL], "top_p": 0},
        {"stream": True, "stream_options": {"include_obfuscation": True}, "max_output_tokens": -1},
        {"tools": [{"type": "web_search", "external_web_access": False}, {"type": "made_up"}]},
        {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [TOOL]}]},
        {"tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark"}}]},
        {"reasoning": None, "conversation": None, "prompt": None, "instructions": None, "tools": None, "text": None},
    ],
)
def test_supported(fields: dict[str, Any]) -> None:
    assert parse(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", 5),
        ("input", None),
        ("model", ""),
        ("max_output_tokens", 0),
        ("temperature", 2.1),
        ("top_p", -0.1),
        ("conversation", "conv_1"),
        ("reasoning", {"effort": "huge"}),
        ("text", {"format": {"type": "grammar"}}),
        ("text", {"format": {"type": "json_schema", "name": "n"}}),
        ("tools", [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]),
        ("tool_choice", {"type": "web_search"}),
        ("tool_choice", {"type": "function"}),
        ("top_logprobs", 21),
        ("background", True),
        ("background", 0),
        ("parallel_tool_calls", 1),
        ("tools", [{**TOOL, "strict": 0}]),
        ("stream_options", "all"),
        ("metadata", {str(number): "" for number in range(17)}),
        ("prompt_cache_key", "x" * 257),
        ("stop", "x"),
        ("seed", 1),
    ],
)
def test_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(**{name: value})
    assert caught.value.field.partition(".")[0].partition("[")[0] == name


OUTPUT = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [{"token": "a"}], "parsed": {"a": 1}}


@pytest.mark.parametrize(
    "item",
    [
        {"role": "developer", "content": "be nice", "type": "message"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [OUTPUT],
            "phase": None,
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": None, "namespace": None},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "x"}, {"type": "input_file", "file_id": "f"}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}], "phase": "commentary"},
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_1"},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": None},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x", "id": "ctc_1"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
        {"type": "made_up_call", "id": "ws_1", "status": "completed", "action": {}},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "x"}],
            "status": "completed",
        },
    ],
)
def test_items(item: dict[str, Any]) -> None:
    assert parse(input=[USER, item])


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"role": "tool", "content": "x"}, "input[1].role"),
        ({"role": "user"}, "input[1].content"),
        ({"type": "item_reference", "id": ""}, "input[1].id"),
        ({"type": "function"}, "input[1].type"),
        ({"type": ["x"]}, "input[1].type"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[1].call_id"),
        ({"type": "function_call_output", "output": "42"}, "input[1].call_id"),
        ({"type": "reasoning", "summary": "x"}, "input[1].summary"),
        ({"type": "reasoning", "content": [{"type": "output_text", "text": "x"}]}, "input[1].content[0].type"),
        ("hi", "input[1]"),
    ],
)
def test_items_refused(item: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(input=[USER, item])
    assert caught.value.field == field
