import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.chat import ChatRequest
from gateway.api.validation import parse_body

USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ChatRequest:
    return parse_body(json.dumps({"model": "m", "messages": [USER], **fields}).encode(), ChatRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1},
        {"stop": "x"},
        {"stop": ["x"] * 16},
        {"seed": -1},
        {"logprobs": True, "top_logprobs": 20},
        {"logit_bias": {"5": -100}},
        {"n": 16},
        {"user": "u", "metadata": {"a": "b"}, "store": False},
        {"store": True, "service_tier": "flex", "safety_identifier": "s", "prompt_cache_retention": "24h"},
        {"prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "verbosity": "medium"},
        {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"prediction": None, "verbosity": None, "service_tier": None, "modalities": None, "audio": None},
        {"top_k": 0, "min_p": 0, "repetition_penalty": 1.1},
        {"tools": None, "response_format": None, "reasoning_effort": None, "temperature": None, "stop": None},
        {"tools": []},
        {"top_p": 0, "top_k": -1, "max_tokens": -1, "max_completion_tokens": -1, "tool_choice": "any"},
        {"verbosity": "low", "store": "yes", "metadata": {"number": 1}, "session_id": "s", "ttl": 300, "usage": {}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"enable_thinking": False, "thinking": {"type": "disabled"}, "reasoning": {"effort": "low", "exclude": True}},
        {"tools": [{"type": "function", "function": {"name": "server.tool/x y", "parameters": {}}}] * 200},
        {"request_id": "mine", "keep_alive": "5m", "include_reasoning": True, "provider": {"order": []}},
    ],
)
def test_supported(fields: dict[str, Any]) -> None:
    assert parse(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", []),
        ("model", ""),
        ("model", "x" * 257),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("max_tokens", 0),
        ("max_tokens", 2**32),
        ("max_completion_tokens", -2),
        ("stop", ""),
        ("stop", "x" * 257),
        ("stop", ["x"] * 17),
        ("top_logprobs", 21),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("logit_bias", {"5": 101}),
        *(("logit_bias", {key: 1}) for key in ("x", "-1", "²", "4294967296")),
        ("seed", 2**64),
        ("n", 17),
        ("n", 0),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("reasoning_effort", "huge"),
        ("chat_template_kwargs", []),
        ("functions", [{}]),
        ("repetition_penalty", 0),
        ("min_p", 1.5),
        ("top_k", -2),
        ("response_format", {"type": "grammar"}),
        ("tool_choice", "sometimes"),
        ("prompt_cache_key", "k" * 257),
    ],
)
def test_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(**{name: value})
    assert caught.value.field.partition(".")[0].partition("[")[0] == name


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"},
        {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "tool_calls": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "1"},
        {"role": "assistant", "content": "a", "reasoning_content": "because"},
        {"role": "assistant", "content": "a", "reasoning": "because"},
        {"role": "assistant", "content": "a", "reasoning": "because", "reasoning_content": "because"},
        {"role": "user", "content": "a", "reasoning": None},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": "no", "id": "m1", "thinking_blocks": [{}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": None}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": None, "tool_call_id": "1", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}]},
        {
            "role": "assistant",
            "content": '{"a": 1}',
            "parsed": {"a": 1},
            "tool_calls": [
                {
                    "index": 0,
                    "id": "1",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}", "parsed_arguments": None},
                }
            ],
        },
    ],
)
def test_messages(message: dict[str, Any]) -> None:
    assert parse(messages=[message])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "x", "tool_call_id": "1"},
        {"role": "user", "content": "x", "reasoning_content": "y"},
        {"role": "user", "content": "x", "reasoning": "y"},
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "function", "content": "x", "name": "f"},
    ],
)
def test_messages_refused(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(messages=[USER, message])
    assert caught.value.field.startswith("messages[1]")


def test_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}]
    assert parse(messages=[{"role": "user", "content": parts}]).messages[0].to_proto().content == "ab\n"
