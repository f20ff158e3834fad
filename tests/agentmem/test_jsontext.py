import json

import pytest

from agentmem import jsontext
from agentmem.errors import InvalidArgument


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("text", ["{}", '{"a": [1, {"b": null}]}', nested(jsontext.MAX_DEPTH)])
def test_taken(text: str) -> None:
    assert jsontext.parse("f", text, dict) == json.loads(text) == jsontext.object_or_text(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        (nested(jsontext.MAX_DEPTH + 1), "nested deeper"),
        (nested(10_000), "is not JSON"),
        (nested(100_000), "must not have more than 32768 arrays and objects"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_refused_and_left_as_text(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as caught:
        jsontext.parse("f", text, dict)
    assert caught.value.field == "f"
    assert jsontext.object_or_text(text) == text


def test_what_is_no_text_stays() -> None:
    value = {"a": 1}
    assert jsontext.object_or_text(value) is value
    assert jsontext.object_or_text(None) is None
