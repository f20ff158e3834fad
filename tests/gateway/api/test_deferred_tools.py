"""Tools that are no part of the prompt until a message names them."""

import json
from typing import Any

import pytest

from gateway.api.messages import chat_messages
from gateway.api.messages_schema import CountTokensRequest
from gateway.api.validation import parse_body


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **fields}


TOOLS = [tool("search"), tool("far", defer_loading=True), tool("farther", defer_loading=True)]
ASKED = {"role": "user", "content": "go"}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]}


def found(*names: str) -> dict[str, Any]:
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": references}]}


def chat(*messages: Any, tools: Any = TOOLS) -> Any:
    body = json.dumps({"messages": messages, "tools": tools}).encode()
    return chat_messages(parse_body(body, CountTokensRequest))


def offered(*messages: Any) -> list[str]:
    return [each["function"]["name"] for each in json.loads(chat(*messages).tools_json)]


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ([ASKED], ["search"]),
        ([ASKED, CALLED, found("farther")], ["search", "farther"]),
        ([ASKED, CALLED, found("farther", "far", "unknown")], ["search", "farther", "far"]),
    ],
)
def test_tools_are_offered_from_where_they_are_named(messages: list[Any], names: list[str]) -> None:
    assert offered(*messages) == names


def test_the_model_reads_which_tools_were_found() -> None:
    said = chat(ASKED, CALLED, found("far")).messages
    assert said[-1].content == "The tool far can be called now.\n"
