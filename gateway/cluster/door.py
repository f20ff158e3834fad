"""The door of a node: the gRPC server on which other nodes of the cluster, known by their certificates, make calls.

The gateway that a caller connected to has authenticated the caller and set the namespace. Calls are forwarded to this
node's worker or store, as bytes; those about workflow runs are served by this process. Only the RPCs of ALLOWED are
served; all others raise UNIMPLEMENTED.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from agentmem import errors
from agentmem.channels import DOOR_OPTIONS, closing_stream
from agentmem.process import rpc
from agentmem.process.server import GrpcServer, Register
from agentmem.process.wire import drain
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, model_pb2, workflow_pb2
from gateway.cluster.calls import BEGUN, NOT_BEGUN
from gateway.cluster.channel import ROUTED
from gateway.cluster.membership import Membership, key_of

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]

_INFERENCE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_AGENTS: Final = agent_pb2.DESCRIPTOR.services_by_name["AgentService"]
_MODELS: Final = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
_WORKFLOWS: Final = workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"]
_STORE: Final = cache_store_pb2.DESCRIPTOR.services_by_name["CacheStoreService"]

ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    _INFERENCE.full_name: frozenset(_INFERENCE.methods_by_name),
    _AGENTS.full_name: frozenset(_AGENTS.methods_by_name),
    _MODELS.full_name: frozenset({"ListModels", "GetModel"}),
    _STORE.full_name: frozenset({"OpenCache", "ReadBlock"}),
    _WORKFLOWS.full_name: frozenset({"RunWorkflow", "CancelWorkflow"}),
}
"""The RPCs that other nodes may call, by service. None of the store's commits: a worker commits at its own store."""


def node_door(
    address: str,
    credentials: grpc.ServerCredentials,
    worker: grpc.aio.Channel,
    store: grpc.aio.Channel,
    membership: Membership,
    unready: Callable[[], str],
    workflows: Any,
) -> GrpcServer:
    """Return the server. While `unready` returns a reason, it refuses calls about agents, and callers try another node.

    `workflows` is the servicer of the RPCs of WorkflowService that are allowed.
    """
    services = [_own_service(_WORKFLOWS, workflows)]
    for descriptor in (_INFERENCE, _AGENTS, _MODELS, _STORE):
        door = _Door(store if descriptor is _STORE else worker, membership, unready)
        services.append(door.service(descriptor))
    return GrpcServer(address, services, credentials, DOOR_OPTIONS)


def _own_service(descriptor: ServiceDescriptor, servicer: Any) -> tuple[str, Register, Any]:
    """Return the allowed RPCs of a service that this process serves itself, as GrpcServer takes them."""
    served = {
        method.name: rpc.maker(rpc.arity(method.client_streaming, method.server_streaming))(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in descriptor.methods
        if method.name in ALLOWED[descriptor.full_name]
    }

    def register(_: Any, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, served),))

    return descriptor.full_name, register, servicer


class _Door:
    """Handlers that pass bytes on to one process."""

    def __init__(self, channel: grpc.aio.Channel, membership: Membership, unready: Callable[[], str]) -> None:
        self._channel = channel
        self._membership = membership
        self._unready = unready

    def service(self, descriptor: ServiceDescriptor) -> tuple[str, Register, Any]:
        """Return the allowed RPCs of a service, as GrpcServer takes them."""
        allowed = ALLOWED[descriptor.full_name]
        served = {method.name: self._handler(method) for method in descriptor.methods if method.name in allowed}

        def register(_: Any, server: grpc.aio.Server) -> None:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, served),))

        return descriptor.full_name, register, None

    def _handler(self, method: MethodDescriptor) -> Any:
        arity = rpc.arity(method.client_streaming, method.server_streaming)
        path = f"/{method.containing_service.full_name}/{method.name}"
        call = getattr(self._channel, arity)(path)
        serve = {"unary_unary": self._unary, "unary_stream": self._stream, "stream_unary": self._upload}[arity]
        return rpc.maker(arity)(serve(method, path, call))

    def _unary(self, method: MethodDescriptor, path: str, call: Any) -> Any:
        async def handle(request: bytes, context: "_Context") -> bytes:
            await self._admit(path, context)
            with self._counted(method, path, request):
                outgoing = call(request, timeout=context.time_remaining())
                try:
                    answer: bytes = await outgoing
                except grpc.aio.AioRpcError as error:
                    await _pass_on(error, context)
                    raise
                finally:
                    outgoing.cancel()
                return answer

        return handle

    def _stream(self, method: MethodDescriptor, path: str, call: Any) -> Any:
        async def handle(request: bytes, context: "_Context") -> AsyncIterator[bytes]:
            await self._admit(path, context)
            with self._counted(method, path, request):
                outgoing = call(request, timeout=context.time_remaining())
                try:
                    async with closing_stream(outgoing) as messages:
                        async for message in messages:
                            yield message
                except grpc.aio.AioRpcError as error:
                    await _pass_on(error, context)
                    raise

        return handle

    def _upload(self, _: MethodDescriptor, path: str, call: Any) -> Any:
        async def handle(requests: AsyncIterator[bytes], context: "_Context") -> bytes:
            await self._admit(path, context)
            await context.send_initial_metadata(((BEGUN, "1"),))  # now the other end sends the rest: see UploadCall
            outgoing = call(timeout=context.time_remaining())
            try:
                try:
                    async for request in requests:
                        await outgoing.write(request)
                    await outgoing.done_writing()
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await drain(requests)  # the worker has ended the call, and its status says why
                answer: bytes = await outgoing
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
                raise
            finally:
                outgoing.cancel()
            return answer

        return handle

    async def _admit(self, path: str, context: "_Context") -> None:
        if path in ROUTED and (reason := self._unready()):
            context.set_trailing_metadata(((NOT_BEGUN, "1"),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"this node is not ready: {reason}")

    def _counted(self, method: MethodDescriptor, path: str, request: bytes) -> Any:
        kind = ROUTED.get(path)
        if kind is None or not kind.turn:
            return nullcontext()
        message: Any = GetMessageClass(method.input_type).FromString(request)
        return self._membership.turn(key_of(message.key))


async def _pass_on(error: grpc.aio.AioRpcError, context: "_Context") -> None:
    """End the call with UNAVAILABLE and no details, so that the caller sees that this node's worker was not reached.

    Errors that the worker itself raised are passed on by the server, with their details.
    """
    if errors.is_unreachable(error):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "this node's worker cannot be reached")
