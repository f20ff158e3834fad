"""Fields of the dialects: which values are taken, and which field a refusal names, as one table."""

import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.messages_schema import CountTokensRequest
from gateway.api.validation import parse_body

from .dialects import DIALECTS, USER, parse

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CHAT_TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
ITEM_TOOL: dict[str, Any] = {"type": "function", **FUNCTION, "strict": None}
TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def refusal(dialect: str, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        parse(dialect, **fields)
    return caught.value


TAKEN: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"temperature": 0, "top_p": 1, "stop": "x", "seed": -1, "logprobs": True, "top_logprobs": 20, "n": 16},
        {"temperature": 2, "stop": ["x"] * 16, "logit_bias": {"5": -100}, "top_k": 0, "repetition_penalty": 1.1},
        {
            "stream": True,
            "stream_options": {"include_usage": True, "include_obfuscation": False},
            "modalities": ["text"],
        },
        {"tools": None, "response_format": None, "reasoning_effort": None, "temperature": None, "stop": None},
        {"tools": [], "top_p": 0, "top_k": -1, "max_tokens": -1, "max_completion_tokens": -1, "tool_choice": "any"},
        {"tools": [{"type": "function", "function": {"name": "server.tool/x y", "parameters": {}}}] * 200},
    ],
    "completions": [
        {"suffix": None, "echo": None, "best_of": None, "logprobs": None, "user": "u"},
        {"echo": False, "best_of": 2, "n": 2, "logprobs": 0, "stop": ["x"], "seed": -1, "logit_bias": {"1": 1}},
    ],
    "responses": [
        {"input": "", "instructions": "be nice", "max_output_tokens": 1, "temperature": 0, "top_p": 1},
        {"store": False, "metadata": {"a": "b"}, "text": {"format": {"type": "text"}, "verbosity": None}},
        {"top_logprobs": 20, "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
        {"parallel_tool_calls": True, "background": False, "reasoning": {"effort": "low", "summary": "auto"}},
        {"tools": [{**ITEM_TOOL, "strict": True, "defer_loading": None}], "tool_choice": "required"},
        {"tools": [ITEM_TOOL], "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": -1},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark"}}]},
        {"reasoning": None, "instructions": None, "tools": None, "text": None},
    ],
    "messages": [
        {"temperature": 1, "top_p": 0, "top_k": -1, "stop_sequences": ["x"] * 16, "system": "s"},
        {"system": [{"type": "text", "text": "s", **CACHED}], **CACHED, "metadata": {"user_id": "u" * 256, "n": 5}},
        {"metadata": {"user_id": None}, "stop_sequences": [], "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tools": [{**TOOL, **CACHED, "description": "d", "type": "custom", "strict": False}]},
        {"tools": [{**TOOL, "type": None, "allowed_callers": ["direct"]}], "tool_choice": {"type": "none"}},
        {"tools": [{**TOOL, "strict": True}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": None}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": None}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "made_up_20250305", "max_uses": 5}]},
        {"tools": [{**TOOL, "name": "server.tool/with spaces " + "x" * 104, "defer_loading": True}]},
    ],
}


@pytest.mark.parametrize(("dialect", "fields"), [(name, each) for name, found in TAKEN.items() for each in found])
def test_taken(dialect: str, fields: dict[str, Any]) -> None:
    assert parse(dialect, **fields)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"model": value}, "model") for name in DIALECTS for value in ("", "x" * 257, 5)),
    *((name, {"stream": "yes"}, "stream") for name in DIALECTS),
    *((name, {"temperature": value}, "temperature") for name in DIALECTS for value in (-0.1, 2.1, "1", True)),
    *((name, {"top_p": value}, "top_p") for name in DIALECTS for value in (-0.1, 1.1)),
    *((name, {"max_tokens": value}, "max_tokens") for name in ("chat", "messages") for value in (0, 2**32, 1.5, True)),
    *((name, {"logit_bias": {"x": 1}}, "logit_bias") for name in ("chat", "completions")),
    ("chat", {"messages": []}, "messages"),
    ("chat", {"max_completion_tokens": -2}, "max_completion_tokens"),
    ("chat", {"stop": ""}, "stop"),
    ("chat", {"stop": "é" * 129}, "stop"),
    ("chat", {"stop": ["x"] * 17}, "stop"),
    ("chat", {"stop": [1]}, "stop[0]"),
    ("chat", {"top_logprobs": 21}, "top_logprobs"),
    ("chat", {"logit_bias": {"5": 101}}, "logit_bias.5"),
    *(("chat", {"logit_bias": {key: 1}}, "logit_bias") for key in ("-1", "²", "4294967296")),
    ("chat", {"seed": 2**64}, "seed"),
    ("chat", {"n": 17}, "n"),
    ("chat", {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ("chat", {"modalities": ["text", "audio"]}, "modalities[1]"),
    ("chat", {"reasoning_effort": "huge"}, "reasoning_effort"),
    ("chat", {"chat_template_kwargs": []}, "chat_template_kwargs"),
    ("chat", {"repetition_penalty": 0}, "repetition_penalty"),
    ("chat", {"top_k": -2}, "top_k"),
    ("chat", {"prompt_cache_key": "k" * 257}, "prompt_cache_key"),
    ("chat", {"response_format": {}}, "response_format.type"),
    ("chat", {"response_format": {"type": "grammar"}}, "response_format.type"),
    ("chat", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        "chat",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        "response_format.json_schema.schema",
    ),
    ("chat", {"tool_choice": "sometimes"}, "tool_choice"),
    ("chat", {"tool_choice": {"type": "custom"}}, "tool_choice.type"),
    ("chat", {"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ("chat", {"tool_choice": {"type": "function", "function": {"name": ""}}}, "tool_choice.function.name"),
    ("chat", {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ("chat", {"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ("chat", {"tools": [{"type": "function"}]}, "tools[0].function"),
    ("chat", {"tools": [CHAT_TOOL, {"type": "custom", "custom": {}}]}, "tools[1].type"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "x" * 129}}]}, "tools[0].function.name"),
    (
        "chat",
        {"tools": [{"type": "function", "function": {**FUNCTION, "parameters": []}}]},
        "tools[0].function.parameters",
    ),
    *(("completions", {"prompt": value}, "prompt") for value in (None, [])),
    *(("completions", {"prompt": value}, "prompt[0]") for value in ([[]], ["a"] * 65, [-1], [2**32])),
    ("completions", {"echo": True}, "echo"),
    ("completions", {"logprobs": 6}, "logprobs"),
    ("responses", {"input": 5}, "input"),
    ("responses", {"max_output_tokens": 0}, "max_output_tokens"),
    ("responses", {"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ("responses", {"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    (
        "responses",
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
        "tools[0].tools[0].type",
    ),
    ("responses", {"tools": [{**ITEM_TOOL, "strict": 0}]}, "tools[0].strict"),
    ("responses", {"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ("responses", {"tool_choice": {"type": "function"}}, "tool_choice.name"),
    ("responses", {"background": True}, "background"),
    ("responses", {"background": 0}, "background"),
    ("responses", {"stream_options": "all"}, "stream_options"),
    ("responses", {"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ("messages", {"max_tokens": None}, "max_tokens"),
    ("messages", {"temperature": 1.1}, "temperature"),
    ("messages", {"stop_sequences": ["ok", ""]}, "stop_sequences[1]"),
    ("messages", {"system": [{"type": "image"}]}, "system[0].type"),
    ("messages", {"metadata": {"user_id": "é" * 129}}, "metadata.user_id"),
    ("messages", {"thinking": {"type": "between"}}, "thinking.type"),
    ("messages", {"tools": [TOOL, {**TOOL, "name": ""}]}, "tools[1].name"),
    ("messages", {"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ("messages", {"tools": [{**TOOL, "defer_loading": 1}]}, "tools[0].defer_loading"),
    ("messages", {"tool_choice": {"type": "function"}}, "tool_choice.type"),
    ("messages", {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ("messages", {"output_config": {"effort": "huge"}}, "output_config.effort"),
    ("messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
]


@pytest.mark.parametrize(("dialect", "fields", "field"), REFUSED)
def test_refused_by_name(dialect: str, fields: dict[str, Any], field: str) -> None:
    assert refusal(dialect, **fields).field == field


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OUTPUT = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [{"token": "a"}], "parsed": {"a": 1}}
TURNS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "chat": (
        "messages",
        [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "bob", "reasoning": None},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": '{"a": 1}', "parsed": {"a": 1}, "tool_calls": [{"index": 0, **CALL}]},
            {"role": "assistant", "content": "a", "reasoning": "because", "reasoning_content": "because"},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": "no", "thinking_blocks": [{}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            *(
                {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", **given}}]}
                for given in ({}, {"arguments": None}, {"arguments": {}})
            ),
            {"role": "tool", "content": None, "tool_call_id": "1", "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}]},
        ],
    ),
    "responses": (
        "input",
        [
            {"role": "developer", "content": "be nice", "type": "message"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [OUTPUT]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": None, "namespace": None},
            {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": None},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}], "phase": "commentary"},
            {"type": "item_reference", "id": "msg_1"},
            {"id": "msg_1"},
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x", "id": "ctc_1"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
            {"type": "made_up_call", "id": "ws_1", "status": "completed", "action": {}},
        ],
    ),
    "messages": (
        "messages",
        [
            {"role": "user", "content": [block]}
            for block in (
                {"type": "text", "text": "a", **CACHED, "citations": [{"type": "char_location"}]},
                {"type": "tool_use", "id": "1", "name": "f", "input": {}, **CACHED, "caller": {"type": "direct"}},
                {"type": "tool_use", "id": "1", "name": "f", "input": "{}"},
                {"type": "tool_use", "id": "1", "name": "f", "input": None},
                {"type": "tool_result", "tool_use_id": "1", **CACHED, "is_error": True},
                {"type": "thinking", "thinking": "hm", "signature": "s", **CACHED},
                {"type": "made_up", "id": "1"},
                {"type": "container_upload", "file_id": "f"},
            )
        ],
    ),
}


@pytest.mark.parametrize(
    ("dialect", "field", "said"), [(name, field, each) for name, (field, found) in TURNS.items() for each in found]
)
def test_what_was_said(dialect: str, field: str, said: dict[str, Any]) -> None:
    assert parse(dialect, **{field: [USER, said]})


@pytest.mark.parametrize(
    ("dialect", "said", "path"),
    [
        ("chat", 5, ""),
        ("chat", {"content": "x"}, "role"),
        ("chat", {"role": "user", "content": None}, ""),
        ("chat", {"role": "user", "content": 5}, "content"),
        ("chat", {"role": "tool", "content": "42"}, ""),
        ("chat", {"role": "user", "content": "x", "tool_call_id": "1"}, ""),
        ("chat", {"role": "user", "content": "x", "reasoning": "y"}, ""),
        ("chat", {"role": "user", "content": [{"type": "hologram"}]}, "content[0].type"),
        ("chat", {"role": "function", "content": "x", "name": "f"}, "role"),
        ("responses", {"role": "tool", "content": "x"}, "role"),
        ("responses", {"role": "user"}, "content"),
        ("responses", {"type": "item_reference", "id": ""}, "id"),
        ("responses", {"type": "function"}, "type"),
        ("responses", {"type": ["x"]}, "type"),
        ("responses", {"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
        ("responses", {"type": "function_call_output", "output": "42"}, "call_id"),
        ("responses", {"type": "reasoning", "summary": "x"}, "summary"),
        ("responses", {"type": "reasoning", "content": [{"type": "output_text", "text": "x"}]}, "content[0].type"),
        ("responses", "hi", ""),
        ("messages", {"role": "tool", "content": "x"}, "role"),
        ("messages", {"role": "user"}, "content"),
        ("messages", {"role": "user", "content": 5}, "content"),
        *(
            ("messages", {"role": "user", "content": [block]}, f"content[0].{path}")
            for block, path in (
                ({"type": "function"}, "type"),
                ({"type": 5}, "type"),
                ({}, "type"),
                ({"type": "text"}, "text"),
                ({"type": "document"}, "source"),
                ({"type": "search_result", "source": "u", "title": "t", "content": 5}, "content"),
                ({"type": "tool_use", "id": "1", "name": "f", "input": 5}, "input"),
                ({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "thinking"}]}, "content[0].type"),
                ({"type": "tool_result", "content": "42"}, "tool_use_id"),
            )
        ),
    ],
)
def test_what_was_said_is_refused_by_path(dialect: str, said: Any, path: str) -> None:
    field = TURNS[dialect][0]
    assert refusal(dialect, **{field: [USER, said]}).field == f"{field}[1].{path}".removesuffix(".")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("", [""]),
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts(prompt: Any, prompts: Any) -> None:
    assert parse("completions", prompt=prompt).prompts == prompts


def test_counting_takes_what_makes_a_prompt() -> None:
    counted = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL], "tool_choice": {"type": "auto"}}
    assert parse_body(json.dumps(counted).encode(), CountTokensRequest)
