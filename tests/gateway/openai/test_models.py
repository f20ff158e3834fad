from agentmem.v1 import model_pb2
from gateway.openai.models import model_list


def test_models() -> None:
    loaded = model_pb2.Model(model_id="a/b", state=model_pb2.MODEL_STATE_LOADED, is_default=True, context_length=9)
    told = model_list([loaded, model_pb2.Model(model_id="c", error="too large")])
    assert told["object"] == "list"
    first, second = told["data"]
    assert (first["id"], first["object"], first["owned_by"]) == ("a/b", "model", "agentmem")
    assert (first["agentmem"]["state"], first["agentmem"]["default"]) == ("loaded", True)
    assert second["agentmem"]["error"] == "too large"
