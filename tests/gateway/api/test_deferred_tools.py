"""Tools that are no part of the prompt until a message names them."""

import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
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


def change(kind: str, **named: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": named}]}


def chat(*messages: Any, tools: Any = TOOLS) -> Any:
    body = json.dumps({"messages": messages, "tools": tools}).encode()
    return chat_messages(parse_body(body, CountTokensRequest))


def offered(*messages: Any) -> list[str]:
    return [each["function"]["name"] for each in json.loads(chat(*messages).tools_json)]


NAMED = {"type": "tool_reference", "name": "far"}


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ([ASKED], ["search"]),
        ([ASKED, CALLED, found("farther")], ["search", "farther"]),
        ([ASKED, CALLED, found("farther", "far", "unknown")], ["search", "farther", "far"]),
        ([ASKED, change("tool_addition", **NAMED)], ["search", "far"]),
        ([ASKED, change("tool_addition", **NAMED), change("tool_removal", **NAMED)], ["search"]),
        ([ASKED, change("tool_addition", type="tool_definition", definition=tool("new"))], ["search", "new"]),
    ],
)
def test_tools_are_offered_from_where_they_are_named(messages: list[Any], names: list[str]) -> None:
    assert offered(*messages) == names


def test_the_model_reads_which_tools_were_found() -> None:
    said = chat(ASKED, CALLED, found("far")).messages
    assert said[-1].content == "The tool far can be called now.\n"
    assert [each.role for each in chat(ASKED, change("tool_addition", **NAMED)).messages] == ["user"]


def test_names_of_no_tool_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        chat(ASKED, change("tool_addition", type="tool_reference", name="none"))
    assert caught.value.field == "messages[1].content[0].tool.name"


def test_system_messages_for_one_turn_are_gone_after_it() -> None:
    note = {"role": "system", "content": "Be quick.", "clear_at": "next_user_message"}
    assert [each.content for each in chat(ASKED, note).messages] == ["go", "Be quick."]
    later = chat(ASKED, note, {"role": "assistant", "content": "done"}, ASKED)
    assert [each.content for each in later.messages] == ["go", "done", "go"]
