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
        {"top_p": 0, "top_k": -1, "metadata": {"user_id": "u", "number": 5}, "safeguards": {"level": 1}},
        {"cache_control": {"type": "ephemeral", "ttl": "9m"}, "service_tier": "priority", "speed": "fast"},
        {"thinking": {"type": "adaptive", "display": "updates", "block_binding": {}}, "inference_geo": "us"},
        {"tools": [{**TOOL, "defer_loading": True, "input_examples": [{}], "allowed_callers": ["code_execution"]}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "made_up_20250305", "max_uses": 5}]},
        {"tools": [{**TOOL, "name": "server.tool/with spaces " + "x" * 104}]},
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
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop_sequences": ["ok", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x" * 257]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"metadata": {"user_id": "u" * 257}}, "metadata.user_id"),
        ({"metadata": {"user_id": "é" * 129}}, "metadata.user_id"),
        ({"metadata": {"user_id": ""}}, "metadata.user_id"),
        ({"thinking": {"type": "between"}}, "thinking.type"),
        ({"tools": [TOOL, {**TOOL, "name": ""}]}, "tools[1].name"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
        ({"tools": [{**TOOL, "defer_loading": 1}]}, "tools[0].defer_loading"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"container": "c"}, "container"),
        ({"compaction": {}}, "compaction"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"prefill": "I"}, "prefill"),
        ({"stream": "yes"}, "stream"),
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
    {"type": "thinking", "thinking": "hm", "signature": "s", **CACHED},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "1", "content": []},
    {"type": "made_up", "id": "1"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}, "title": "t"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
    {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "x"}]},
    {"type": "container_upload", "file_id": "f"},
    {"type": "text", "text": "a", "citations": [{"type": "char_location"}]},
    {"type": "tool_use", "id": "1", "name": "f", "input": "{}", "caller": {"type": "x"}},
    {"type": "tool_use", "id": "1", "name": "f", "input": None},
    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {}}]},
    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": "look"}]},
]


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks(block: dict[str, Any]) -> None:
    assert parse(messages=[{"role": "user", "content": [block]}])


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "function"}, "type"),
        ({"type": "document"}, "source"),
        ({"type": "search_result", "source": "u", "title": "t", "content": 5}, "content"),
        ({"type": 5}, "type"),
        ({}, "type"),
        ({"type": "text"}, "text"),
        ({"type": "tool_use", "id": "1", "name": "f", "input": 5}, "input"),
        ({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "thinking"}]}, "content[0].type"),
        ({"type": "tool_result", "content": "42"}, "tool_use_id"),
    ],
)
def test_blocks_refused_by_path(block: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(messages=[USER, USER, {"role": "user", "content": [block]}])
    assert caught.value.field == f"messages[2].content[0].{field}".removesuffix(".")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 5}, "content"),
    ],
)
def test_messages_refused_by_path(message: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(messages=[USER, message])
    assert caught.value.field == f"messages[1].{field}"


def test_counting_takes_what_makes_a_prompt() -> None:
    counted = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL], "tool_choice": {"type": "auto"}}
    assert parse_body(json.dumps(counted).encode(), CountTokensRequest)
