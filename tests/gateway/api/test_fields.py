from typing import Any

import pytest
from pydantic import ValidationError

from gateway.api.validation import Count, JsonObject, KeyPart, StopString, Strict


class Body(Strict):
    text: str = ""
    data: JsonObject | None = None
    stop: StopString = "."
    count: Count = 1
    name: KeyPart = "m"


@pytest.mark.parametrize(
    "body",
    [
        {"text": "é\u0000🌍"},
        {"data": {"a": [1, 1.5, None, "é"]}},
        {"stop": "é" * 128},
        {"count": 2**32 - 1},
        {"name": "org/m"},
    ],
)
def test_taken(body: dict[str, Any]) -> None:
    assert Body.model_validate(body)


@pytest.mark.parametrize(
    "body",
    [
        {"text": 5},
        {"data": {"a": ["\ud800"]}},
        {"data": {"\ud800": 1}},
        {"data": {"a": float("nan")}},
        {"data": {"a": [float("inf")]}},
        {"data": []},
        {"stop": ""},
        {"stop": "é" * 129},
        {"count": 0},
        {"count": 2**32},
        {"count": True},
        {"count": "1"},
        {"name": ""},
        {"more": 1},
    ],
)
def test_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(body)
    assert "\ud800" not in str(caught.value)


def test_a_models_name_is_that_of_a_key() -> None:
    with pytest.raises(ValidationError, match="at most 256 bytes"):
        Body.model_validate({"name": "x" * 257})
