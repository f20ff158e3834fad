"""How much a model thinks, in the words of several servers."""

import json
from typing import Any

import pytest

from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
from gateway.api.thinking import template_arguments
from gateway.api.validation import parse_body


def arguments(**fields: Any) -> Any:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    made = parse_body(body, ChatRequest).template_arguments()
    return None if made is None else json.loads(made)


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({}, None),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, {"enable_thinking": True}),
        ({"thinking": True}, {"enable_thinking": True}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "low", "exclude": True}}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "low", "reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "reasoning_effort": "none"}),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            {"enable_thinking": True, "x": 1},
        ),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": True}),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
    ],
)
def test_words_for_thinking(fields: dict[str, Any], made: Any) -> None:
    assert arguments(**fields) == made


@pytest.mark.parametrize(
    ("effort", "given", "made"),
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
def test_arguments(effort: Any, given: Any, made: Any) -> None:
    text = template_arguments(effort, given)
    assert (None if text is None else json.loads(text)) == made


def test_they_reach_the_turn() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    chat = ChatRequest.model_validate({**body, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}})
    (turn,) = chat_exchange(chat, Incoming("ns", "", "0f" * 16, 7)).turns
    assert json.loads(turn.messages.template_arguments_json) == {"a": 1, "reasoning_effort": "low"}
    (turn,) = chat_exchange(ChatRequest.model_validate(body), Incoming("ns", "", "0f" * 16, 7)).turns
    assert not turn.messages.HasField("template_arguments_json")
