"""How much a model thinks, in the words of several servers."""

import json
from typing import Any

import pytest

from gateway.api.chat import ChatRequest
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
