"""Fields that no schema has: without effect and named in the answer, or refused with advice."""

import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.completions import CompletionRequest, completion_exchange
from gateway.api.exchange import Incoming
from gateway.api.fields import REFUSED
from gateway.api.messages import messages_exchange
from gateway.api.messages_schema import MessagesRequest
from gateway.api.responses import response_exchange
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import parse_body

USER = {"role": "user", "content": "hi"}
DIALECTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "chat": (ChatRequest, chat_exchange, {"messages": [USER]}),
    "completions": (CompletionRequest, completion_exchange, {"prompt": "hi"}),
    "responses": (ResponseRequest, response_exchange, {"input": "hi"}),
    "messages": (MessagesRequest, messages_exchange, {"messages": [USER], "max_tokens": 1}),
}
ALL = pytest.mark.parametrize("dialect", DIALECTS)


def unread(dialect: str, **fields: Any) -> list[str]:
    schema, translate, body = DIALECTS[dialect]
    asked = parse_body(json.dumps({**body, **fields}).encode(), schema)
    return list(translate(asked, Incoming("ns", "", "0f" * 16, 7)).others)


def refusal(dialect: str, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        unread(dialect, **fields)
    return caught.value


@ALL
def test_unknown_fields_of_a_body_are_told(dialect: str) -> None:
    assert unread(dialect, temprature=0, service_tier="auto") == ["temprature", "service_tier"]
    assert unread(dialect, temprature=None, service_tier=[]) == []
    assert unread(dialect, **{"the key is in the cellar": 1}) == ["(a name)"]


@ALL
def test_what_would_change_the_answer_is_refused_with_advice(dialect: str) -> None:
    for name in REFUSED.keys() - DIALECTS[dialect][0].model_fields:
        error = refusal(dialect, **{name: "x"})
        assert (error.field, error.problem) == (name, f"is not supported: {REFUSED[name]}")
        assert unread(dialect, **{name: None}) == unread(dialect, **{name: []}) == []


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_so_it_is_in_messages_whose_other_fields_have_no_effect(dialect: str) -> None:
    assert refusal(dialect, messages=[USER, {**USER, "prefix": True}]).field == "messages[1].prefix"
    assert unread(dialect, messages=[{**USER, "weight": 1}]) == []
