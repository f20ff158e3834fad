import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import inference_pb2
from gateway.api.exchange import Exchange, Incoming
from gateway.api.responses import response_exchange
from gateway.api.responses_schema import ResponseRequest

FIRST = Incoming("ns", "", "1" * 32, 7)
SECOND = Incoming("ns", "", "2" * 32, 8)
TOOL = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"é": 1}'}
GAVE = {"type": "function_call_output", "call_id": "c1", "output": "42"}


def exchange(incoming: Incoming = FIRST, **fields: Any) -> Exchange:
    return response_exchange(ResponseRequest.model_validate({"model": "m", "input": "hi", **fields}), incoming)


def turn(**fields: Any) -> inference_pb2.GenerateRequest:
    return exchange(**fields).turns[0]


def told(found: inference_pb2.GenerateRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in found.messages.messages]


def test_text_is_a_message_of_the_user_behind_the_instructions() -> None:
    assert told(turn()) == [("user", "hi")]
    assert told(turn(instructions="be nice")) == [("system", "be nice"), ("user", "hi")]
    assert told(turn(instructions="")) == [("user", "hi")]


def test_parameters_pass() -> None:
    found = turn(max_output_tokens=5, top_p=0.5)
    assert (found.key.namespace, found.key.agent_id, found.key.model_id) == ("ns", "", "m")
    assert (found.max_tokens, found.sampling.top_p, found.sampling.HasField("temperature")) == (5, 0.5, False)
    assert not turn().HasField("max_tokens") and not turn().HasField("top_logprobs")
    assert turn(temperature=0).sampling.temperature == 0
    include = ["message.output_text.logprobs"]
    assert turn(include=include).top_logprobs == 0 and turn(include=include).HasField("top_logprobs")
    assert turn(include=include, top_logprobs=3).top_logprobs == 3
    assert exchange(prompt_cache_key="k").label == "k"
    assert exchange(stream=True).streamed


def test_formats() -> None:
    assert not turn(text={"format": {"type": "text"}}).HasField("json_schema")
    assert json.loads(turn(text={"format": {"type": "json_object"}}).json_schema) == {"type": "object"}
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    found = turn(text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    assert json.loads(found.json_schema) == schema


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
    for include in (["reasoning.encrypted_content"], []):
        assert not turn(input="a", include=include).HasField("top_logprobs")


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


def test_what_follows_a_response_is_its_input_and_the_instructions_and_tools() -> None:
    first = exchange(tools=[TOOL])
    second = exchange(SECOND, instructions="be nice", previous_response_id=identifier(first), tools=[TOOL])
    assert second.previous == first.turns[0].request_id
    assert told(second.turns[0]) == [("system", "be nice"), ("user", "hi")]
    assert second.turns[0].messages.tools_json == first.turns[0].messages.tools_json


@pytest.mark.parametrize("previous", ["", "resp_1", "chatcmpl-" + "0" * 48, "x" * 10_000])
def test_what_cannot_be_a_response_is_not_found(previous: str) -> None:
    with pytest.raises(NotFound) as caught:
        exchange(previous_response_id=previous)
    assert caught.value.kind == "response"
    assert len(caught.value.message) < 250


def test_top_logprobs_need_logprobs() -> None:
    with pytest.raises(InvalidArgument) as caught:
        exchange(top_logprobs=3)
    assert caught.value.field == "top_logprobs"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_very_many_calls_and_texts_are_one_message() -> None:
    """In one pass: it took a quarter of an hour where each call was written again with each one behind it."""
    said = {"role": "assistant", "content": "and "}
    calls = [{**CALL, "call_id": f"c{number}"} for number in range(9_000)]
    _, message = turn(input=[{"role": "user", "content": "go"}, *calls, *[said] * 9_000]).messages.messages
    assert len(json.loads(message.tool_calls_json)) == 9_000
    assert message.content == "and " * 9_000
