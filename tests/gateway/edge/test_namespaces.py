import pytest

from agentmem.errors import PermissionDenied
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from gateway.edge.authorization import authorize_namespace

OTHER = types_pb2.AgentKey(namespace="other", agent_id="a", model_id="m")


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
