import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.messages_schema import CountTokensRequest, MessagesRequest
from gateway.api.validation import parse_body

USER = {"role": "user", "content": "hi"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}


def parse(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **fields}
    return parse_body(json.dumps(body).encode(), MessagesRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_p": 1, "top_k": 0},
        {"temperature": 1, "top_p": 0.01, "top_k": 2**32 - 1},
        {"stop_sequences": ["x"] * 16},
        {"stop_sequences": []},
        {"system": "s"},
        {"system": [{"type": "text", "text": "s", **CACHED}], **CACHED},
        {"metadata": {"user_id": "u" * 256}},
        {"metadata": {"user_id": None}},
        {"metadata": {}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"thinking": {"type": "disabled"}, "service_tier": "standard_only", "speed": "standard"},
        {"service_tier": "auto"},
        {"tools": [{**TOOL, **CACHED, "description": "d", "type": "custom", "strict": False}]},
        {"tools": [{**TOOL, "defer_loading": False, "eager_input_streaming": True, "input_examples": []}]},
        {"tools": [{**TOOL, "type": None, "allowed_callers": ["direct"]}], "tool_choice": {"type": "none"}},
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": None}},
        {"tools": [{**TOOL, "strict": True}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": None}},
        {"output_config": {"format": None}},
        {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "scope": "global"}}]},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses"}}]}},
        {"context_management": {}, "diagnostics": {"previous_message_id": "msg_1"}},
        {"output_config": {"effort": "low"}},
        {"container": None, "mcp_servers": [], "inference_geo": None, "context_management": None, "made_up": None},
    ],
)
def test_supported(fields: dict[str, Any]) -> None:
    assert parse(**fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": "x" * 257}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": ["ok", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x" * 257]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": "\ud800"}, "system"),
        ({"system": [{"type": "text", "text": "\ud800"}]}, "system[0].text"),
        ({"system": [{"type": "text", "text": "s", "cache_control": {"type": "x"}}]}, "system[0].cache_control.type"),
        ({"cache_control": {"type": "ephemeral", "ttl": "9m"}}, "cache_control.ttl"),
        ({"metadata": {"user_id": "u" * 257}}, "metadata.user_id"),
        ({"metadata": {"user_id": "é" * 129}}, "metadata.user_id"),
        ({"metadata": {"user_id": ""}}, "metadata.user_id"),
        ({"metadata": {"user_id": "\ud800"}}, "metadata.user_id"),
        ({"metadata": {"other": "u"}}, "metadata.other"),
        ({"thinking": {"type": "between"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL, {**TOOL, "name": ""}]}, "tools[1].name"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "input_schema": {"a": ["\ud800"]}}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "input_schema": {"a": float("nan")}}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers[0]"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"container": "c"}, "container"),
        ({"compaction": {}}, "compaction"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "x": 1}]}},
            "context_management.edits[0].x",
        ),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"stream": "yes"}, "stream"),
        ({"made_up": 1}, "made_up"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(**fields)
    assert caught.value.field == field


BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "a", **CACHED, "citations": None},
    {"type": "text", "text": "a", "citations": []},
    {"type": "tool_use", "id": "1", "name": "f", "input": {}, **CACHED, "caller": {"type": "direct"}},
    {"type": "tool_result", "tool_use_id": "1", **CACHED, "is_error": True},
    {"type": "tool_result", "tool_use_id": "1", "content": "42"},
    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "42"}]},
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
]


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks(block: dict[str, Any]) -> None:
    assert parse(messages=[{"role": "user", "content": [block]}])


@pytest.mark.parametrize(
    ("block", "field"),
    [
        *(
            ({"type": kind}, "type")
            for kind in (
                "image",
                "document",
                "search_result",
                "server_tool_use",
                "web_search_tool_result",
                "mcp_tool_use",
                "container_upload",
            )
        ),
        ({}, "type"),
        ({"type": "text"}, "text"),
        ({"type": "text", "text": "a", "citations": [{"type": "char_location"}]}, "citations"),
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control.ttl"),
        ({"type": "tool_use", "id": "1", "name": "f", "input": "{}"}, "input"),
        ({"type": "tool_use", "id": "1", "name": "f", "input": {"a": "\ud800"}}, "input"),
        ({"type": "tool_use", "id": "1", "name": "f", "input": {}, "caller": {"type": "x"}}, "caller.type"),
        ({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {}}]}, "content[0].type"),
        ({"type": "tool_result", "content": "42"}, "tool_use_id"),
        ({"type": "thinking", "thinking": "hm", "signature": "s", **CACHED}, "cache_control"),
    ],
)
def test_blocks_refused_by_path(block: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(messages=[USER, USER, {"role": "user", "content": [block]}])
    assert caught.value.field == f"messages[2].content[0].{field}"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": "x", "name": "bob"}, "name"),
    ],
)
def test_messages_refused_by_path(message: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(messages=[USER, message])
    assert caught.value.field == f"messages[1].{field}"


def test_counting_takes_what_makes_a_prompt() -> None:
    counted = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL], "tool_choice": {"type": "auto"}}
    assert parse_body(json.dumps(counted).encode(), CountTokensRequest)
    for name in ("max_tokens", "temperature", "stream", "stop_sequences", "metadata"):
        with pytest.raises(InvalidArgument) as caught:
            parse_body(json.dumps({**counted, name: 1}).encode(), CountTokensRequest)
        assert caught.value.field == name
