"""Fields that no schema has: without effect and named in the answer, or refused with advice."""

from typing import Any

import pytest

from gateway.api.fields import REFUSED

from .dialects import DIALECTS, USER, exchange, refusal

ALL = pytest.mark.parametrize("dialect", DIALECTS)


def unread(dialect: str, **fields: Any) -> list[str]:
    return list(exchange(dialect, **fields).others)


@ALL
def test_unknown_fields_of_a_body_are_told(dialect: str) -> None:
    assert unread(dialect, temprature=0, service_tier="auto") == ["temprature", "service_tier"]
    assert unread(dialect, temprature=None, service_tier=[]) == []
    assert unread(dialect, **{"the key is in the cellar": 1}) == ["(a name)"]


@ALL
def test_what_would_change_the_answer_is_refused_with_advice(dialect: str) -> None:
    for name in REFUSED.keys() - DIALECTS[dialect].schema.model_fields:
        error = refusal(dialect, **{name: "x"})
        assert (error.field, error.problem) == (name, f"is not supported: {REFUSED[name]}")
        assert unread(dialect, **{name: None}) == unread(dialect, **{name: []}) == []


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_so_it_is_in_messages_whose_other_fields_have_no_effect(dialect: str) -> None:
    assert refusal(dialect, messages=[USER, {**USER, "prefix": True}]).field == "messages[1].prefix"
    assert unread(dialect, messages=[{**USER, "weight": 1}]) == []
