import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import inference_pb2
from gateway.api.exchange import Exchange, Incoming

from . import dialects

FIRST = dialects.INCOMING
SECOND = FIRST._replace(unique="2" * 32)
TOOL = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"é": 1}'}
GAVE = {"type": "function_call_output", "call_id": "c1", "output": "42"}


def exchange(incoming: Incoming = FIRST, **fields: Any) -> Exchange:
    return dialects.exchange("responses", incoming, **fields)


def turn(**fields: Any) -> inference_pb2.GenerateRequest:
    return exchange(**fields).turns[0]


def told(found: inference_pb2.GenerateRequest) -> list[tuple[str, str]]:
    messages = (found.messages if found.HasField("messages") else found.append.messages).messages
    return [(message.role, message.content) for message in messages]


def test_text_is_a_message_of_the_user_behind_the_instructions() -> None:
    assert told(turn()) == [("user", "hi")]
    assert told(turn(instructions="be nice")) == [("system", "be nice"), ("user", "hi")]
    assert told(turn(instructions="")) == [("user", "hi")]


def test_tools_are_told_in_the_shape_of_chat_completions() -> None:
    found = turn(tools=[TOOL, {"type": "function", "name": "bare", "parameters": None, "strict": None}])
    definition = {name: TOOL[name] for name in ("name", "description", "parameters")}
    bare = {"type": "function", "function": {"name": "bare"}}
    assert json.loads(found.messages.tools_json) == [{"type": "function", "function": definition}, bare]
    assert found.tool_calls
    for without in (turn(tools=[TOOL], tool_choice="none"), turn(tools=[]), turn()):
        assert not without.tool_calls and not without.messages.HasField("tools_json")


def test_what_the_model_said_and_called_at_once_is_one_message() -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    items = [{"role": "user", "content": "hi"}, said, CALL, {**CALL, "call_id": "c2"}, said, GAVE, CALL, GAVE]
    found = turn(input=items)
    text = ["hi", "I lookI look", "42", "", "42"]
    assert told(found) == list(zip(["user", "assistant", "tool", "assistant", "tool"], text, strict=True))
    first, second = (message for message in found.messages.messages if message.role == "assistant")
    function = {"name": "look", "arguments": CALL["arguments"]}
    assert json.loads(first.tool_calls_json) == [
        {"id": call, "type": "function", "function": function} for call in ("c1", "c2")
    ]
    assert len(json.loads(second.tool_calls_json)) == 1
    assert found.messages.messages[2].tool_call_id == "c1"


def test_messages_of_others_stay_apart() -> None:
    items = [{"role": role, "content": role} for role in ("developer", "assistant", "assistant", "user", "user")]
    assert [role for role, _ in told(turn(input=items))] == ["system", "assistant", "assistant", "user", "user"]


def test_reasoning_that_says_nothing_is_left_out() -> None:
    nothing = {"type": "reasoning", "id": "rs", "summary": []}
    assert told(turn(input=[nothing, {"role": "user", "content": "a"}])) == [("user", "a")]
    with pytest.raises(InvalidArgument) as caught:
        turn(input=[nothing])
    assert caught.value.field == "input"


def test_reasoning_belongs_to_the_message_that_follows_it() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "42"}
    said = {"role": "assistant", "content": "b"}
    asked = turn(input=[{"role": "user", "content": "a"}, thought("I muse."), said, call, result, thought("So."), said])
    messages = asked.messages.messages
    assert [(m.role, m.content, m.reasoning_content) for m in messages] == [
        ("user", "a", ""),
        ("assistant", "b", "I muse."),
        ("tool", "42", ""),
        ("assistant", "b", "So."),
    ]
    twice = turn(input=[thought("I"), said, thought("\n\nThen"), {"role": "assistant", "content": "\n\nc"}])
    assert [(m.content, m.reasoning_content) for m in twice.messages.messages] == [("b\n\nc", "I\n\nThen")]


def identifier(found: Exchange) -> str:
    return str(found.answer.body()["id"])


def test_the_id_names_the_turn() -> None:
    found = exchange()
    assert found.turns[0].request_id == identifier(found)
    assert identifier(found).startswith(f"resp_{FIRST.unique}")


def test_each_attempt_with_a_key_names_the_same_turn() -> None:
    attempts = [FIRST._replace(turn="k"), SECOND._replace(turn="k")]
    first, second = (exchange(attempt) for attempt in attempts)
    assert identifier(first) == identifier(second) == first.turns[0].request_id
    assert identifier(first) != identifier(exchange(FIRST._replace(turn="other")))


def test_what_is_not_stored_has_no_name_that_anybody_knows() -> None:
    assert turn(store=False).request_id == ""
    first, second = (exchange(attempt._replace(turn="k"), store=False) for attempt in (FIRST, SECOND))
    assert first.turns[0].request_id == second.turns[0].request_id not in ("", identifier(first))


LOW = {"reasoning": {"effort": "low"}}
ARGUMENTS: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False, "a": "é"}}
THINKS = {"chat_template_kwargs": {"enable_thinking": True, "a": "é"}}


@given(st.text(), st.sampled_from([None, [TOOL]]), st.sampled_from([{}, LOW, ARGUMENTS]))
def test_what_follows_a_response_is_appended(instructions: str, tools: Any, arguments: dict[str, Any]) -> None:
    same = {"instructions": instructions, "tools": tools, **arguments}
    first = exchange(**same)
    same |= {name: dict(reversed(value.items())) for name, value in arguments.items()}
    second = exchange(SECOND, input="and?", previous_response_id=identifier(first), **same)
    assert second.previous == first.turns[0].request_id
    assert not second.turns[0].HasField("messages")
    assert told(second.turns[0]) == [("user", "and?")], "the instructions are in memory"
    before, appended = first.turns[0].messages, second.turns[0].append.messages
    assert appended.tools_json == before.tools_json
    assert appended.template_arguments_json == before.template_arguments_json
    third = exchange(SECOND, previous_response_id=identifier(second), **same)
    assert third.previous == identifier(second)


@pytest.mark.parametrize(
    ("then", "now", "field"),
    [
        ({"instructions": "be nice"}, {}, "instructions"),
        ({}, {"instructions": "be nice"}, "instructions"),
        ({"instructions": "be nice"}, {"instructions": "be nicer"}, "instructions"),
        ({"tools": [TOOL]}, {}, "tools"),
        ({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}, "tools"),
        ({"tools": [TOOL]}, {"tools": [{**TOOL, "name": "listen"}]}, "tools"),
        (LOW, {}, "reasoning"),
        (LOW, {"reasoning": {"effort": "high"}}, "reasoning"),
        ({}, LOW, "reasoning"),
        (ARGUMENTS, {}, "reasoning"),
        (ARGUMENTS, LOW, "reasoning"),
        (ARGUMENTS, {**ARGUMENTS, **LOW}, "chat_template_kwargs"),
        (ARGUMENTS, THINKS, "chat_template_kwargs"),
    ],
)
def test_another_beginning_is_refused(then: dict[str, Any], now: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        exchange(SECOND, previous_response_id=identifier(exchange(**then)), **now)
    assert caught.value.field == field
    assert "send the same ones" in caught.value.message


def test_no_arguments_are_none() -> None:
    assert exchange(chat_template_kwargs={}).turns == exchange().turns


@pytest.mark.parametrize(
    "previous", ["", "resp_1", *(f"resp_{'0' * size}" for size in (47, 49)), "chatcmpl-" + "0" * 48, "x" * 10_000]
)
def test_what_cannot_be_a_response_is_not_found(previous: str) -> None:
    with pytest.raises(NotFound) as caught:
        exchange(previous_response_id=previous)
    assert caught.value.kind == "response"
    assert len(caught.value.message) < 250


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_very_many_calls_and_texts_are_one_message() -> None:
    """They are joined in one pass: writing each call again with each later one took a quarter of an hour."""
    said = {"role": "assistant", "content": "and "}
    calls = [{**CALL, "call_id": f"c{number}"} for number in range(9_000)]
    _, message = turn(input=[{"role": "user", "content": "go"}, *calls, *[said] * 9_000]).messages.messages
    assert len(json.loads(message.tool_calls_json)) == 9_000
    assert message.content == "and " * 9_000
