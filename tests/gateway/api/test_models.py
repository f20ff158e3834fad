import pytest

from agentmem.v1 import model_pb2
from gateway.api.models import anthropic_model, anthropic_page, openai_list


def test_openais_list() -> None:
    loaded = model_pb2.Model(model_id="a/b", state=model_pb2.MODEL_STATE_LOADED, is_default=True, context_length=9)
    told = openai_list([loaded, model_pb2.Model(model_id="c", error="too large")])
    assert told["object"] == "list"
    first, second = told["data"]
    assert (first["id"], first["object"], first["owned_by"]) == ("a/b", "model", "agentmem")
    assert (first["agentmem"]["state"], first["agentmem"]["is_default"]) == ("loaded", True)
    assert second["agentmem"]["error"] == "too large"


def test_anthropics_model() -> None:
    loaded = model_pb2.Model(model_id="a/b", state=model_pb2.MODEL_STATE_LOADED, context_length=9)
    told = anthropic_model(loaded)
    assert (told["id"], told["type"], told["display_name"]) == ("a/b", "model", "a/b")
    assert (told["max_input_tokens"], told["agentmem"]["state"]) == (9, "loaded")
    assert anthropic_model(model_pb2.Model(model_id="c"))["max_input_tokens"] is None


@pytest.mark.parametrize("ids", ["", "a", "abc"])
def test_anthropics_page_has_all(ids: str) -> None:
    page = anthropic_page([model_pb2.Model(model_id=name) for name in ids])
    assert [model["id"] for model in page["data"]] == list(ids)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
