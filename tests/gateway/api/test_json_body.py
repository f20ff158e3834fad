import json
from typing import Any

import pytest
from pydantic import ValidationError

from agentmem.conversations import template_tools
from agentmem.errors import InvalidArgument
from agentmem.jsonsize import BODY, MAX_MEMBERS, TEXT
from agentmem.jsontext import MAX_DEPTH
from gateway.api.chat import ChatRequest
from gateway.api.validation import parse_body

from . import dialects

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


def test_numbers_that_are_none_are_refused() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":%b}'
    assert [refused(body % number).field for number in (b"NaN", b"Infinity", b"-Infinity")] == ["body"] * 3
    assert refused(body % b"1e999").field == "temperature"


@pytest.mark.parametrize("changed", [{"model": "\ud800"}, {"stop": ["ok", "a\udc00"]}, {"x\ud800": 1}])
def test_lone_surrogates_are_refused(changed: dict[str, Any]) -> None:
    error = refused_json(**changed)
    assert (error.field, error.problem.partition(":")[0]) == ("body", "is not JSON in UTF-8")


def test_nesting_is_limited_wherever_it_is() -> None:
    def sent(depth: int) -> bytes:
        return json.dumps(GOOD).encode()[:-1] + b', "nothing": ' + b"[" * depth + b"]" * depth + b"}"

    assert parse_body(sent(MAX_DEPTH - 1), ChatRequest)
    assert refused(sent(MAX_DEPTH)).field == "body"
    wide = json.dumps({**GOOD, "stop": ["x"], "messages": GOOD["messages"] * 500}).encode()
    assert len(parse_body(wide, ChatRequest).messages) == 500


def tool_of(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("dialect", "tool", "around"),
    [
        ("chat", tool_of, 4),
        ("responses", lambda deep: {"type": "function", "name": "f", "parameters": deep}, 3),
        ("messages", lambda deep: {"name": "f", "input_schema": deep}, 3),
    ],
)
def test_what_the_door_takes_is_not_too_deep_for_the_contract(dialect: str, tool: Any, around: int) -> None:
    def deep(depth: int) -> list[Any]:
        return [tool(json.loads('{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)))]

    assert len(template_tools(dialects.turn(dialect, tools=deep(MAX_DEPTH - around)).messages)) == 1
    assert "nested deeper" in dialects.refusal(dialect, tools=deep(MAX_DEPTH - around + 1)).problem


def test_a_missing_field_is_named() -> None:
    error = refused(b'{"model": "m"}')
    assert (error.field, error.problem) == ("messages", "is required")


def test_an_object_of_too_many_members_is_refused() -> None:
    members = ", ".join(f'"n{number}": 1' for number in range(MAX_MEMBERS + 1))
    assert f"an object of more than {MAX_MEMBERS} members" in refused(f"{{{members}}}".encode()).problem


@pytest.mark.parametrize(
    ("element", "most", "word"),
    [
        (b"1", BODY.values, "values"),
        (b'""', BODY.texts, "texts"),
        (b"[]", BODY.containers, "arrays and objects"),
        (b"{}", BODY.containers, "arrays and objects"),
    ],
)
def test_a_body_of_too_many_parts_is_refused_before_it_is_read(element: bytes, most: int, word: str) -> None:
    error = refused(b'{"messages": [' + b",".join([element] * (most + 1)))  # which is no JSON
    assert (error.field, error.problem) == ("body", f"must not have more than {most} {word}")


def test_a_list_is_read_up_to_its_first_bad_element() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**GOOD, "messages": [1] * 1000, "tools": [{"type": "function"}] * 100})
    assert [error["loc"][:2] for error in caught.value.errors()] == [("messages", 0), ("tools", 0)]


def test_json_that_goes_on_as_text_has_its_own_limit() -> None:
    most = TEXT.values
    for value in ([0] * most, {"a": [0] * most}, [[0.5, 1, 2]] * (most // 4 + 1)):
        assert refused_json(chat_template_kwargs={"a": value}).problem == f"must not have more than {most} values"
    tools = [tool_of({"enum": [0] * (most // 100)}) for _ in range(101)]
    error = dialects.refusal("chat", tools=tools)
    assert error.field == "tools" and error.problem.startswith("must not have more than")
