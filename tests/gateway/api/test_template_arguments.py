"""Arguments for the model's chat template, as dialects give them."""

import json
from typing import Any

import pytest

from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
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
