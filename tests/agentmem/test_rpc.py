import grpc
import pytest

from agentmem import rpc
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, model_pb2, workflow_pb2


@pytest.mark.parametrize("file", [agent_pb2, cache_store_pb2, inference_pb2, model_pb2, workflow_pb2])
def test_every_rpcs_arity_names_what_serves_it(file: object) -> None:
    for service in file.DESCRIPTOR.services_by_name.values():  # type: ignore[attr-defined]
        for method in service.methods:
            arity = rpc.arity(method.client_streaming, method.server_streaming)
            assert hasattr(grpc.aio.Channel, arity)
            behaviour = object()
            made = rpc.maker(arity)(behaviour)
            assert (made.request_streaming, made.response_streaming) == (
                method.client_streaming,
                method.server_streaming,
            )
