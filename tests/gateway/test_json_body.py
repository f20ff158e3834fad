import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from gateway.json_body import parse_body
from gateway.openai.chat_schema import ChatRequest

GOOD: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def refused(body: bytes) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        parse_body(body, ChatRequest)
    return caught.value


def refused_json(**changed: Any) -> InvalidArgument:
    return refused(json.dumps({**GOOD, **changed}).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"{}{}",
        "{}".encode("utf-16"),
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 200_000,
        b'{"model":' * 100_000,
    ],
    ids=["empty", "cut", "list", "null", "text", "not-utf8", "bom", "two", "utf16", "huge-int", "deep", "deep-objects"],
)
def test_no_json_object(body: bytes) -> None:
    assert refused(body).field == "body"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_by_field(number: str) -> None:
    error = refused(b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":' + number.encode() + b"}")
    assert error.field == "temperature"
    assert "finite" in error.problem


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model": "\ud800"}, "model"),
        ({"messages": [{"role": "user", "content": "a\udc00"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
            "messages[0].content[0].text",
        ),
        ({"stop": ["ok", "\ud800"]}, "stop[1]"),
        ({"user": "\ud800"}, "user"),
        ({"metadata": {"\ud800": "x"}}, "metadata"),
        ({"x\ud800": 1}, "body"),
    ],
)
def test_lone_surrogates_are_refused_by_field(changed: dict[str, Any], field: str) -> None:
    error = refused_json(**changed)
    assert error.field.startswith(field)
    assert error.message.encode()  # and can be written


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model": 5}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"nonsense": None}, "nonsense"),
    ],
)
def test_the_field_is_named(changed: dict[str, Any], field: str) -> None:
    assert refused_json(**changed).field == field


def test_a_missing_field_is_named() -> None:
    error = refused(b'{"model": "m"}')
    assert (error.field, error.problem) == ("messages", "is required")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)) | st.text(max_size=5), JSON))
def test_any_json_is_taken_or_refused(data: dict[str, Any]) -> None:
    try:
        parse_body(json.dumps({**GOOD, **data}).encode(), ChatRequest)
    except InvalidArgument as error:
        assert error.message.encode()  # noqa: PT017 - both outcomes are right


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    refused(body)
