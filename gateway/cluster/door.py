"""The gRPC server of a node for other nodes, known by their certificates.

The caller's gateway has authenticated the caller and set the namespace. RPCs without a place in the cluster raise
UNIMPLEMENTED.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import grpc

from agentmem.channels import DOOR_OPTIONS
from agentmem.process.server import GrpcServer
from agentmem.rpcs import Rpc, rpc_of
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, options_pb2
from gateway.cluster.membership import Membership, key_of
from gateway.cluster.routed import NOT_BEGUN
from gateway.grpc.forwarding import Forwarder
from gateway.upstream import ChannelWorker, Unreachable

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]

_WORKERS: Final = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"],
)
_STORES: Final = cache_store_pb2.DESCRIPTOR.services_by_name["CacheStoreService"]


def serves(rpc: Rpc) -> bool:
    """Return whether nodes may call an RPC."""
    return bool(rpc.options.place or rpc.options.nodes)


def node_door(
    address: str,
    credentials: grpc.ServerCredentials,
    worker: grpc.aio.Channel,
    store: grpc.aio.Channel,
    membership: Membership,
    unready: Callable[[], str],
) -> GrpcServer:
    """While `unready` returns a reason, calls about agents are refused, and callers try another node."""

    @asynccontextmanager
    async def admitted(request: Any, context: "_Context") -> AsyncIterator[None]:
        options = rpc_of(request).options
        if options.place == options_pb2.PLACE_AGENT and (reason := unready()):
            context.set_trailing_metadata(((NOT_BEGUN, "1"),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"this node is not ready: {reason}")
        try:
            with membership.turn(key_of(request.key)) if options.turn else nullcontext():
                yield
        except Unreachable:  # without details: this node's worker was not reached
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node's worker cannot be reached")

    forward = Forwarder(ChannelWorker(worker, parsed=False), admitted).service
    read = Forwarder(ChannelWorker(store, parsed=False), admitted).service
    services = [*(forward(each, serves) for each in _WORKERS), read(_STORES, serves)]
    return GrpcServer(address, services, credentials, DOOR_OPTIONS)
