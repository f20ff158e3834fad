import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.conversations import chain_of
from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
from gateway.api.messages import chat_messages
from gateway.api.messages_schema import Conversation

SCHEMA = {"type": "object", "properties": {"é": {"type": "string"}}}


def translate(*messages: Any, **fields: Any) -> types_pb2.Messages:
    return chat_messages(Conversation.model_validate({"model": "m", "messages": list(messages), **fields}))


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"} if content else {"role": "assistant", "content": []}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"id-{name}", "name": name, "input": arguments}


def result(name: str, content: Any = "42", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"id-{name}", "content": content, **fields}


def said(chat: types_pb2.Messages) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in chat.messages]


ACCOUNTING = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
"""The line with which Claude Code begins the system prompt; its last number differs by request."""
HI = ("user", "hi")


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ("be nice", "be nice"),
        ([text("be "), text("nice")], "be nice"),
        ("", None),
        ([], None),
        (None, None),
        ([text(ACCOUNTING), text("be nice")], "be nice"),
        ([text(f"{ACCOUNTING}\n"), text("be "), text("nice")], "be nice"),
        (f"{ACCOUNTING}\nbe nice", "be nice"),
        ([text(f"{ACCOUNTING}\n\nbe nice")], "be nice"),
        (ACCOUNTING, None),
        (f"be nice\n{ACCOUNTING}", f"be nice\n{ACCOUNTING}"),
    ],
)
def test_system_is_the_first_message_without_its_line_for_accounting(system: Any, told: str | None) -> None:
    assert said(translate(user("hi"), system=system)) == [*([("system", told)] if told else []), HI]


def test_one_role_is_one_turn() -> None:
    chat = translate(user("a"), user(text("b"), text("c")), assistant("d"), assistant(), assistant("e"), user("f"))
    assert said(chat) == [("user", "a\n\nbc"), ("assistant", "d\n\ne"), ("user", "f")]
    assert said(translate(user("hi"), {"role": "system", "content": "stop"})) == [HI, ("system", "stop")]
    assert said(translate(user(ACCOUNTING))) == [("user", ACCOUNTING)], "nobody else's words are taken for it"


def test_calls_and_results() -> None:
    chat = translate(
        user("look"),
        assistant(text("I "), call("one", x="é"), text("look"), call("two")),
        user(result("one"), result("two", [text("4"), text("3")])),
        user("and now?"),
    )
    results = [("tool", "42"), ("tool", "43")]
    assert said(chat) == [("user", "look"), ("assistant", "I look"), *results, ("user", "and now?")]
    assert json.loads(chat.messages[1].tool_calls_json) == [
        {"id": "id-one", "type": "function", "function": {"name": "one", "arguments": '{"x": "é"}'}},
        {"id": "id-two", "type": "function", "function": {"name": "two", "arguments": "{}"}},
    ]
    assert [m.tool_call_id for m in chat.messages] == ["", "", "id-one", "id-two", ""]


def test_results_alone_are_no_message_of_the_user() -> None:
    chat = translate(user("x"), assistant(call("f")), user(result("f", "broken", is_error=True)))
    assert said(chat) == [("user", "x"), ("assistant", ""), ("tool", "Error: broken")]
    nothing = {"type": "tool_result", "tool_use_id": "1"}
    assert said(translate(user(nothing))) == [("tool", "")]


def test_thoughts_go_to_the_template_but_encrypted_ones() -> None:
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]
    chat = translate(user("x"), assistant(*thoughts, text("y")), user("z"), assistant(thoughts[1]), user("!"))
    assert said(chat) == [("user", "x"), ("assistant", "y"), ("user", "z"), ("assistant", ""), ("user", "!")]
    assert [m.reasoning_content for m in chat.messages] == ["", "hm", "", "", ""]
    assert not chat.messages[3].HasField("reasoning_content")


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        *(({"thinking": {"type": kind}}, {"enable_thinking": True}) for kind in ("enabled", "adaptive")),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"chat_template_kwargs": {"a": [1]}, "thinking": {"type": "auto"}}, {"a": [1], "enable_thinking": True}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({}, None),
    ],
)
def test_templates_get_arguments(fields: dict[str, Any], arguments: Any) -> None:
    chat = translate(user("x"), **fields)
    assert (json.loads(chat.template_arguments_json) if chat.template_arguments_json else None) == arguments


def test_tools() -> None:
    tools = [
        {"name": "a", "description": "does a", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"name": "b", "input_schema": {}},
    ]
    assert json.loads(translate(user("x"), tools=tools).tools_json) == [
        {"type": "function", "function": {"name": "a", "description": "does a", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "b", "parameters": {}}},
    ]
    for nothing in ([], None):
        assert not translate(user("x"), tools=nothing).HasField("tools_json")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([assistant("x")], "messages[0].role"),
        ([user("x"), assistant("y"), assistant("z")], "messages[2].role"),
        ([user(text("x"), call("f"))], "messages[0].content[1].type"),
        ([user("x"), user({"type": "thinking", "thinking": "", "signature": ""})], "messages[1].content[0].type"),
        ([user("x"), assistant(text("y"), result("f")), user("z")], "messages[1].content[1].type"),
        ([{"role": "system", "content": [call("f")]}], "messages[0].content[0].type"),
        ([user(text("x"), result("f"))], "messages[0].content[1].type"),
        ([user("x"), user(result("f"))], "messages[1].content[0].type"),
    ],
)
def test_what_does_not_belong_is_refused_by_path(messages: list[Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        translate(*messages)
    assert caught.value.field == field


def test_tools_have_names_of_their_own() -> None:
    with pytest.raises(InvalidArgument) as caught:
        translate(user("x"), tools=[{"name": "a", "input_schema": {}}] * 2)
    assert caught.value.field == "tools[1].name"


DEFERRED = [
    {"name": name, "input_schema": {"type": "object"}, "defer_loading": later}
    for name, later in (("search", False), ("far", True), ("farther", True))
]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([], ["search"]),
        (["farther"], ["search", "farther"]),
        (["farther", "far", "unknown"], ["search", "farther", "far"]),
    ],
)
def test_deferred_tools_are_offered_from_where_they_are_named(found: list[str], names: list[str]) -> None:
    references = [{"type": "tool_reference", "tool_name": name} for name in found]
    later = [assistant(call("search")), user(result("search", references))] if found else []
    chat = translate(user("go"), *later, tools=DEFERRED)
    assert [each["function"]["name"] for each in json.loads(chat.tools_json)] == names
    said = "".join(f"The tool {name} can be called now.\n" for name in found)
    assert not found or chat.messages[-1].content == said, "the model reads which tools were found"


_Arguments = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3)
_Turn = st.tuples(st.text(max_size=8), st.text(max_size=8), st.lists(_Arguments, max_size=2))


@given(st.text(max_size=8), st.lists(_Turn, max_size=3), st.text(max_size=8))
def test_the_conversation_is_the_one_that_openais_door_would_see(
    system: str, turns: list[tuple[str, str, list[Any]]], last: str
) -> None:
    ours: list[Any] = []
    theirs: list[Any] = [{"role": "system", "content": system}] if system else []
    for question, answer, calls in turns:
        names = [str(number) for number in range(len(calls))]
        ours += [user(question), assistant(text(answer), *map(lambda n, c: call(n, **c), names, calls))]
        spelled = [
            {"id": f"id-{n}", "type": "function", "function": {"name": n, "arguments": json.dumps(c, indent=1)}}
            for n, c in zip(names, calls, strict=True)
        ]
        theirs += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if calls:
            ours += [user(*map(result, names)), assistant("so")]
            theirs[-1]["tool_calls"] = spelled
            theirs += [{"role": "tool", "content": "42", "tool_call_id": f"id-{n}"} for n in names]
            theirs += [{"role": "assistant", "content": "so"}]
    ours.append(user(last))
    theirs.append({"role": "user", "content": last})
    chat = ChatRequest.model_validate({"model": "m", "messages": theirs})
    other = chat_exchange(chat, Incoming("ns", "", "0", 0)).turns[0].messages
    assert chain_of(translate(*ours, system=system)) == chain_of(other)
