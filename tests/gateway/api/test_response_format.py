import json
from typing import Any

import pytest

from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
from gateway.api.validation import parse_body

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"ü": {"type": "null"}, "a": {"const": "\ud83d\ude00"}}, "required": ["a"]}


TOOLS = [{"type": "function", "function": {"name": "f"}}]


def asked(response_format: Any, **fields: Any) -> str | None:
    body = {**BODY, "response_format": response_format, **fields}
    chat = parse_body(json.dumps(body).encode(), ChatRequest)
    turn = chat_exchange(chat, Incoming(namespace="ns", turn="", unique="u", created=0)).turns[0]
    return turn.json_schema if turn.HasField("json_schema") else None


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}


def test_text_is_any_text() -> None:
    assert asked({"type": "text"}) is None
    assert asked(None) is None


def test_a_json_object_is_any_object() -> None:
    assert json.loads(asked({"type": "json_object"}) or "") == {"type": "object"}


@pytest.mark.parametrize("fields", [{}, {"strict": True}, {"strict": False}, {"strict": None, "description": "d"}])
def test_a_schema_passes_in_its_order_whether_strict_or_not(fields: dict[str, Any]) -> None:
    text = asked(named(**fields)) or ""
    assert list(json.loads(text)["properties"]) == ["ü", "a"]
    assert json.loads(text) == json.loads(json.dumps(SCHEMA))
    assert "ü" in text, "its size is counted in UTF-8"


def test_text_beside_tools_is_held_too() -> None:
    assert asked(named(), tools=TOOLS) == asked(named())
    assert asked({"type": "text"}, tools=TOOLS) is None
    assert asked(named(), tools=TOOLS, tool_choice="none")
