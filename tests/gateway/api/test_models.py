from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from agentmem.v1 import model_pb2
from gateway.api.models import anthropic_model, anthropic_page, openai_list

MODELS = [model_pb2.Model(model_id=name) for name in "abcde"]


def test_models() -> None:
    loaded = model_pb2.Model(model_id="a/b", state=model_pb2.MODEL_STATE_LOADED, is_default=True, context_length=9)
    told = openai_list([loaded, model_pb2.Model(model_id="c", error="too large")])
    first, second = told["data"]
    assert (told["object"], first["id"], first["object"], first["owned_by"]) == ("list", "a/b", "model", "agentmem")
    assert (first["agentmem"]["state"], first["agentmem"]["is_default"]) == ("loaded", True)
    assert second["agentmem"]["error"] == "too large"
    claudes = anthropic_model(loaded)
    assert (claudes["id"], claudes["type"], claudes["display_name"]) == ("a/b", "model", "a/b")
    assert (claudes["max_input_tokens"], claudes["agentmem"]["state"]) == (9, "loaded")
    assert anthropic_model(model_pb2.Model(model_id="c"))["max_input_tokens"] is None


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "5"}, "abcde", False),
        ({"after_id": "b"}, "cde", False),
        ({"after_id": "b", "limit": "2"}, "cd", True),
        ({"after_id": "e"}, "", False),
        ({"before_id": "d"}, "abc", False),
        ({"before_id": "d", "limit": "2"}, "bc", True),
        ({"before_id": "a"}, "", False),
    ],
)
def test_pages(query: dict[str, str], ids: str, more: bool) -> None:
    page = anthropic_page(MODELS, query)
    assert [model["id"] for model in page["data"]] == list(ids)
    assert page["has_more"] == more
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"after_id": "z"}, "after_id"),
        ({"before_id": "z"}, "before_id"),
        ({"after_id": "a", "before_id": "c"}, "before_id"),
    ],
)
def test_refused_by_name(query: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        anthropic_page(MODELS, query)
    assert caught.value.field == field
