from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from agentmem.v1 import agent_pb2, cache_store_pb2, cluster_pb2, inference_pb2, model_pb2, options_pb2, workflow_pb2


class Rpc(NamedTuple):
    """gRPC's `path`, types, and options (v1/options.proto)."""

    method: MethodDescriptor
    path: str
    request: Any
    response: Any
    options: options_pb2.RpcOptions

    def on(self, channel: grpc.aio.Channel, *, parsed: bool = True) -> Any:
        """Return the RPC of a channel, to call; its responses are bytes if not `parsed`."""
        method = getattr(channel, arity(self.method.client_streaming, self.method.server_streaming))
        return method(self.path, self.request.SerializeToString, self.response.FromString if parsed else None)


def arity(request_streaming: bool, response_streaming: bool) -> str:
    """Return grpc's word, such as "unary_stream"."""
    return "_".join("stream" if streaming else "unary" for streaming in (request_streaming, response_streaming))


def options(method: MethodDescriptor) -> options_pb2.RpcOptions:
    found: options_pb2.RpcOptions = method.GetOptions().Extensions[options_pb2.rpc]
    return found


def rpcs_of(service: ServiceDescriptor) -> list[Rpc]:
    return [
        Rpc(
            method,
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            options(method),
        )
        for method in service.methods
    ]


RPCS: Final[Mapping[type[Message], Rpc]] = {
    rpc.request: rpc
    for file in (inference_pb2, agent_pb2, model_pb2, workflow_pb2, cache_store_pb2, cluster_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for rpc in rpcs_of(service)
}


def rpc_of(request: Message) -> Rpc:
    return RPCS[type(request)]
