import pytest

from agentmem.errors import PermissionDenied
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2
from gateway.edge.authorization import authorize_namespace

OTHER = types_pb2.AgentKey(namespace="other", agent_id="a", model_id="m")


def test_fills_the_callers_own() -> None:
    request = inference_pb2.GenerateRequest()
    authorize_namespace(request, "mine")
    assert request.key.namespace == "mine"
    listing = agent_pb2.ListAgentsRequest(namespace="mine")
    authorize_namespace(listing, "mine")
    assert listing.namespace == "mine"


def test_fills_every_hint() -> None:
    hints = [agent_pb2.TurnHint(key=types_pb2.AgentKey(agent_id=name)) for name in "ab"]
    request = agent_pb2.SetTurnHintsRequest(hints=hints)
    authorize_namespace(request, "mine")
    assert [hint.key.namespace for hint in request.hints] == ["mine", "mine"]


def test_leaves_the_other_arm_of_a_oneof() -> None:
    request = agent_pb2.ImportAgentRequest(chunk=b"bytes")
    authorize_namespace(request, "mine")
    assert request.chunk == b"bytes"


def test_leaves_requests_without_a_namespace() -> None:
    request = model_pb2.GetModelRequest(model_id="m")
    authorize_namespace(request, "mine")
    assert request == model_pb2.GetModelRequest(model_id="m")


def test_refuses_another_by_its_path() -> None:
    with pytest.raises(PermissionDenied, match=r"^key\.namespace: "):
        authorize_namespace(inference_pb2.GenerateRequest(key=OTHER), "mine")
    hints = [agent_pb2.TurnHint(), agent_pb2.TurnHint(key=OTHER)]
    with pytest.raises(PermissionDenied, match=r"^hints\[1\]\.key\.namespace: "):
        authorize_namespace(agent_pb2.SetTurnHintsRequest(hints=hints), "mine")
    with pytest.raises(PermissionDenied):
        authorize_namespace(agent_pb2.ImportAgentRequest(key=OTHER), "mine")
    with pytest.raises(PermissionDenied):
        authorize_namespace(inference_pb2.AbortRequest(namespace="other"), "mine")
