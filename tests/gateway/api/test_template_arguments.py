"""Arguments for the model's chat template, as dialects give them."""

import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument, NotFound
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
from gateway.api.responses import response_exchange
from gateway.api.responses_schema import ResponseRequest
from gateway.api.thinking import template_arguments

INCOMING = Incoming("ns", "", "0f" * 16, 7)


@pytest.mark.parametrize(
    ("effort", "given", "arguments"),
    [
        (None, None, None),
        (None, {}, None),
        ("low", None, {"reasoning_effort": "low"}),
        ("none", None, {"reasoning_effort": "none", "enable_thinking": False}),
        ("none", {"enable_thinking": True}, {"reasoning_effort": "none", "enable_thinking": True}),
        ("high", {"reasoning_effort": "high", "é": [1]}, {"reasoning_effort": "high", "é": [1]}),
        (None, {"enable_thinking": False}, {"enable_thinking": False}),
    ],
)
def test_arguments(effort: Any, given: Any, arguments: Any) -> None:
    made = template_arguments(effort, given)
    assert (None if made is None else json.loads(made)) == arguments


def test_they_reach_the_turn() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    chat = ChatRequest.model_validate({**body, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}})
    (turn,) = chat_exchange(chat, INCOMING).turns
    assert json.loads(turn.messages.template_arguments_json) == {"a": 1, "reasoning_effort": "low"}
    (turn,) = chat_exchange(ChatRequest.model_validate(body), INCOMING).turns
    assert not turn.messages.HasField("template_arguments_json")


def asked(**fields: Any) -> Any:
    return response_exchange(ResponseRequest.model_validate({"model": "m", "input": "hi", **fields}), INCOMING)


def test_a_response_is_followed_with_the_effort_that_it_ran_under() -> None:
    low, free = {"reasoning": {"effort": "low"}}, asked().answer.body()["id"]
    told = asked(**low)
    assert json.loads(told.turns[0].messages.template_arguments_json) == {"reasoning_effort": "low"}
    assert told.answer.body()["reasoning"]["effort"] == "low"
    identifier = told.answer.body()["id"]
    following = asked(previous_response_id=identifier, **low).turns[0]
    assert json.loads(following.append.messages.template_arguments_json) == {"reasoning_effort": "low"}
    for previous, fields in ((identifier, {}), (identifier, {"reasoning": {"effort": "high"}}), (free, low)):
        with pytest.raises(InvalidArgument) as caught:
            asked(previous_response_id=previous, **fields)
        assert caught.value.field == "reasoning"
    with pytest.raises(NotFound):
        asked(previous_response_id=identifier[:-1], **low)


def test_a_response_is_followed_with_the_arguments_that_it_ran_under() -> None:
    given: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False, "a": "é"}}
    told = asked(**given)
    assert json.loads(told.turns[0].messages.template_arguments_json) == given["chat_template_kwargs"]
    identifier = told.answer.body()["id"]
    turned = {"chat_template_kwargs": dict(reversed(given["chat_template_kwargs"].items()))}
    following = asked(previous_response_id=identifier, **turned).turns[0]
    assert json.loads(following.append.messages.template_arguments_json) == given["chat_template_kwargs"]
    low = {"reasoning": {"effort": "low"}}
    for fields in ({}, low, {**given, **low}, {"chat_template_kwargs": {"enable_thinking": True, "a": "é"}}):
        with pytest.raises(InvalidArgument) as caught:
            asked(previous_response_id=identifier, **fields)
        assert caught.value.field == ("chat_template_kwargs" if "chat_template_kwargs" in fields else "reasoning")
    assert asked(chat_template_kwargs={}).turns == asked().turns, "no arguments are none"
