import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.conversations import HASH_BYTES, chain_of, message_hashes, template_messages, template_tools
from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2

USER = {"role": "user", "content": "hello"}

texts = st.text(st.characters(exclude_categories=()), max_size=8)
messages = st.fixed_dictionaries({"role": texts, "content": texts}, optional={"name": texts})


def one(**message: Any) -> bytes:
    return message_hashes([message])[0]


@given(first=st.lists(messages, max_size=4), second=st.lists(messages, max_size=4))
def test_chains_agree_exactly_as_far_as_the_messages_do(first: list[Any], second: list[Any]) -> None:
    a, b = message_hashes(first), message_hashes(second)
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    assert a[:common] == b[:common]
    assert not set(a[common:]) & set(b[common:]) or first == second
    assert all(len(value) == HASH_BYTES for value in a) and len(set(a)) == len(a)


@pytest.mark.parametrize(
    "same",
    [
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        {"content": "hello", "role": "user"},
        {"role": "user", "content": "hello", "name": None},
        {"role": "user", "content": "hello", "tool_calls": []},
    ],
)
def test_what_says_the_same_is_the_same(same: dict[str, Any]) -> None:
    assert message_hashes([same]) == message_hashes([USER])


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "hello "},
        {"role": "userh", "content": "ello"},
        {"role": "user", "content": "hello", "name": "a"},
        {"role": "user", "content": '[{"type":"text","text":"hello"}]'},
        {"role": "user", "content": [{"type": "image", "text": "hello"}]},
        {"role": "user", "content": [{"type": "text", "text": "hello", "x": 1}]},
        {"role": "user", "content": ""},
    ],
)
def test_what_says_something_else_is_another(other: dict[str, Any]) -> None:
    assert message_hashes([other]) != message_hashes([USER])


def test_the_chain_is_what_it_was() -> None:
    """A chain that is stored must mean the same to every later version."""
    chain = message_hashes([USER, {"role": "assistant", "content": "hi", "n": 1}])
    assert [value.hex() for value in chain] == ["a278028547ce0b1cb37fbd9de43ec35a", "c594de5a5fffc88c0f488d01fe947d5a"]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_tools_seed_the_chain_and_none_do_not() -> None:
    assert message_hashes([USER], tools=[]) == message_hashes([USER])
    seeded = message_hashes([USER, USER], tools=[TOOL])
    other = message_hashes([USER, USER], tools=[TOOL, TOOL])
    assert len({*message_hashes([USER, USER]), *seeded, *other}) == 6
    reordered = {"function": {"parameters": {"type": "object"}, "name": "f"}, "type": "function"}
    assert message_hashes([USER, USER], tools=(reordered,)) == seeded


def test_arguments_of_the_template_seed_the_chain_and_none_do_not() -> None:
    assert message_hashes([USER], arguments={}) == message_hashes([USER])
    seeds: list[dict[str, Any]] = [
        {},
        {"arguments": {"reasoning_effort": "low"}},
        {"arguments": {"reasoning_effort": "high"}},
        {"tools": [TOOL]},
        {"tools": [TOOL], "arguments": {"reasoning_effort": "low"}},
    ]
    assert len({each for seed in seeds for each in message_hashes([USER, USER], **seed)}) == 2 * len(seeds)
    reordered = message_hashes([USER], arguments={"b": 1, "a": [2]})
    assert reordered == message_hashes([USER], arguments={"a": [2], "b": 1})


def called(arguments: Any) -> dict[str, Any]:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


json_objects = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    ),
    max_size=4,
)


@pytest.mark.slow
@given(arguments=json_objects, indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_arguments_are_what_their_text_spells(arguments: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(dict(reversed(arguments.items())), indent=indent, ensure_ascii=ascii_only)
    assert one(**called(text)) == one(**called(arguments))
    assert one(**called({**arguments, "one more": 1})) != one(**called(arguments))


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", "1", '{"a": "\\ud800"}', '{"a":' * 100 + "1" + "}" * 100])
def test_arguments_that_spell_no_object_are_text(text: str) -> None:
    assert one(**called(text)) not in (one(**called({})), one(**called(text + " ")))
    calls = json.dumps(called(text)["tool_calls"])
    chat = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="assistant", tool_calls_json=calls)])
    assert template_messages(chat)[0]["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize("calls", [None, 1, [1], [{}], [{"function": 1}], [{"function": {"name": "f"}}]])
def test_calls_of_another_shape_have_a_hash_too(calls: Any) -> None:
    assert one(role="assistant", content="", tool_calls=calls) != one(**called({}))


def test_the_chain_of_a_chat_is_that_of_its_template_messages() -> None:
    chat = types_pb2.Messages(
        messages=[
            types_pb2.ChatMessage(role="user", content="hello", name="a"),
            types_pb2.ChatMessage(role="assistant", tool_calls_json=json.dumps(called('{"a": 1}')["tool_calls"])),
            types_pb2.ChatMessage(role="tool", content="fine", tool_call_id="1"),
        ],
        tools_json=json.dumps([TOOL]),
        template_arguments_json='{"enable_thinking": false}',
    )
    messages = [{**USER, "name": "a"}, called({"a": 1}), {"role": "tool", "content": "fine", "tool_call_id": "1"}]
    assert list(template_messages(chat)) == messages
    assert list(template_tools(chat)) == [TOOL]
    assert chain_of(chat) == message_hashes(messages, [TOOL], {"enable_thinking": False})


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        (types_pb2.Messages(), "messages"),
        (types_pb2.Messages(messages=[types_pb2.ChatMessage()]), "messages.messages[0].role"),
        (
            types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", tool_calls_json="{}")]),
            "messages.messages[0].tool_calls_json",
        ),
        (types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user")], tools_json="[1]"), "messages.tools_json"),
    ],
)
def test_a_chat_that_is_none_is_refused_by_name(chat: types_pb2.Messages, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        chain_of(chat)
    assert caught.value.field == field


def test_an_answer_is_the_same_with_the_reasoning_before_it_and_without() -> None:
    answer = {"role": "assistant", "content": "hi"}
    assert one(**answer, reasoning_content="I muse.") == one(**answer, reasoning_content="") == one(**answer)
    assert (
        one(role="assistant", n=1) == one(role="assistant", content=None, n=1) == one(role="assistant", content="", n=1)
    )
    assert one(**answer, reasoning_content="I muse.") != one(
        role="assistant", content="ho", reasoning_content="I muse."
    )
    assert one(**USER, reasoning_content="I muse.") != one(**USER), "only what a model says has reasoning"
