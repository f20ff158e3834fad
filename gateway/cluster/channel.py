"""A channel that routes calls, used by a node's HTTP and gRPC servers instead of the worker's channel.

Calls about an agent go to the agent's node. All others go to the local worker, with three exceptions: Abort and
SetTurnHints go to all nodes, and after DeleteAgent all nodes drop the agent's KV from memory.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import grpc

from agentmem import errors
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from agentmem.validation import AgentKey
from gateway.cluster.calls import Attempts, Method, StreamCall, UnaryCall, UploadCall
from gateway.cluster.membership import key_of
from gateway.cluster.placement import Placement

_TELL_SECONDS: Final = 5.0
"""Seconds that a call to another node may take, where a call goes to all nodes."""


class _Kind(NamedTuple):
    """`repeatable` and `turn` are as in Method."""

    repeatable: bool = False
    turn: bool = False


def _paths(service: Any, kinds: Mapping[str, _Kind]) -> dict[str, _Kind]:
    return {f"/{service.full_name}/{service.methods_by_name[name].name}": kind for name, kind in kinds.items()}


_READ: Final = _Kind(repeatable=True)
_TURN: Final = _Kind(repeatable=True, turn=True)
_INFERENCE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_AGENTS: Final = agent_pb2.DESCRIPTOR.services_by_name["AgentService"]

ROUTED: Final = {
    **_paths(_INFERENCE, {"Generate": _TURN, "Prefill": _TURN}),
    **_paths(
        _AGENTS,
        {
            **dict.fromkeys(
                ("GetAgent", "ListBlocks", "ProbeAgent", "PrefetchAgent", "EvictAgent", "ExportAgent"), _READ
            ),
            **dict.fromkeys(("TrimAgent", "ForkAgent", "CreateSnapshot", "RestoreSnapshot"), _Kind()),
            **dict.fromkeys(("DeleteAgent", "ImportAgent"), _Kind()),
        },
    ),
}
"""RPCs that run on the node of the agent in their request's `key`."""

ABORT: Final = f"/{_INFERENCE.full_name}/Abort"
DELETE: Final = f"/{_AGENTS.full_name}/DeleteAgent"
EVICT: Final = f"/{_AGENTS.full_name}/EvictAgent"
HINTS: Final = f"/{_AGENTS.full_name}/SetTurnHints"


class RoutedChannel(grpc.aio.Channel):
    """The methods of a channel that the gateway's servers use. Routed calls take messages; they get a request_id."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        if method in (ABORT, HINTS):
            ask = self._abort if method == ABORT else self._hint
            how = Method(method, "unary_unary", request_serializer, None, repeatable=True, turn=False)
            return lambda request, timeout=None, **_: _Task(ask(how, request, timeout, response_deserializer))
        made = self._made(UnaryCall, method, "unary_unary", request_serializer, response_deserializer)
        if method == DELETE:
            return lambda request, timeout=None, **_: _Task(self._delete(made, request, timeout))
        return made

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        return self._made(StreamCall, method, "unary_stream", request_serializer, response_deserializer)

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        if (kind := ROUTED.get(method)) is None:
            return self._placement.local.stream_unary(method, request_serializer, response_deserializer)
        how = Method(method, "stream_unary", request_serializer, response_deserializer, kind.repeatable, kind.turn)

        def call(*, timeout: float | None = None, **_: Any) -> UploadCall:
            return UploadCall(lambda first: self._attempts(how, first, timeout))

        return call

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._placement.local.stream_stream(*args, **kwargs)

    async def __aenter__(self) -> "RoutedChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: its channels are closed by who made them."""

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._placement.local.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._placement.local.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._placement.local.channel_ready()

    def _made(
        self, kind: Callable[[Attempts, Any], Any], path: str, arity: str, serialize: Any, deserialize: Any
    ) -> Any:
        how = ROUTED.get(path)
        if how is None:
            return getattr(self._placement.local, arity)(path, serialize, deserialize)
        method = Method(path, arity, serialize, deserialize, how.repeatable, how.turn)
        return lambda request, *, timeout=None, **_: kind(self._attempts(method, request, timeout), request)

    def _attempts(self, method: Method, request: Any, timeout: float | None) -> Attempts:
        """Return the attempts of a call. A turn without a request_id gets one, so that it can be sent to two nodes."""
        key = getattr(request, "key", None)
        if not isinstance(key, types_pb2.AgentKey):  # an upload that has not even said that
            return Attempts(self._placement, method, AgentKey("", "", ""), timeout, may_abort=False)
        if method.turn and key.agent_id and not request.request_id:
            request.request_id = f"node-{uuid.uuid4().hex}"  # sent to two nodes, it is one turn
        free = method.turn and not (request.HasField("if_version") or request.if_revision)
        return Attempts(self._placement, method, key_of(key), timeout, may_abort=free)

    async def _abort(self, method: Method, request: Any, timeout: float | None, deserialize: Any) -> Any:
        nodes = self._placement.live()
        told = [one for one in await self._told(method, nodes, request) if one is not None]
        if not told:  # as this node's own worker says why
            told = [await method.on(self._placement.local)(request, timeout=timeout)]
        answer = next((one for one in told if inference_pb2.AbortResponse.FromString(one).aborted), told[0])
        return deserialize(answer) if deserialize else answer

    async def _told(self, method: Method, nodes: list[str], request: Any) -> list[bytes | None]:
        return await asyncio.gather(*(self._tell(method, name, request) for name in nodes))

    async def _delete(self, made: Any, request: Any, timeout: float | None) -> Any:
        """Delete an agent, and have other nodes drop its KV from memory; their stores delete its files.

        KV in memory is dropped also where the agent does not exist any more, or its deletion is not finished yet.
        """
        try:
            answer = await made(request, timeout=timeout)
        except errors.Unavailable:
            await self._forget(request)
            raise
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                await self._forget(request)
            raise
        if unheard := await self._forget(request):
            raise errors.Unavailable(
                f"the agent is erased, but {', '.join(unheard)} may still have KV of it in memory; repeat this to be"
                " sure",
                retry_after=1.0,
            )
        return answer

    async def _forget(self, request: Any) -> list[str]:
        """Have all live nodes drop a deleted agent's KV from memory. Return the nodes that did not answer."""
        path: str = EVICT
        hot: Any = agent_pb2.EvictAgentRequest(key=request.key, tier=types_pb2.TIER_HOT)
        if not request.key.model_id:
            path, hot = DELETE, agent_pb2.DeleteAgentRequest(key=request.key, allow_missing=True)
        method = Method(path, "unary_unary", type(hot).SerializeToString, None, repeatable=True, turn=False)
        nodes = self._placement.live()
        told = await self._told(method, nodes, hot)
        return [name for name, answered in zip(nodes, told, strict=True) if answered is None]

    async def _hint(self, method: Method, request: Any, timeout: float | None, deserialize: Any) -> Any:
        here = method.on(self._placement.local)(request, timeout=timeout)
        answer, *_ = await asyncio.gather(
            here, *(self._tell(method, each, request) for each in self._placement.others())
        )
        return deserialize(answer) if deserialize else answer

    async def _tell(self, method: Method, name: str, request: Any) -> bytes | None:
        """Return what a node answers, b"" where it has no such agent; None where it does not answer, or refuses."""
        if (channel := await self._placement.reach(name)) is None:
            return None
        try:
            answer: bytes = await method.on(channel)(request, timeout=_TELL_SECONDS)
        except grpc.aio.AioRpcError as error:
            return b"" if error.code() is grpc.StatusCode.NOT_FOUND else None
        return answer


class _Task:
    """A coroutine as a unary call: awaited once, and cancelled."""

    def __init__(self, work: Any) -> None:
        self._task = asyncio.ensure_future(work)

    def __await__(self) -> Any:
        return self._task.__await__()

    def cancel(self) -> bool:
        """Cancel it, unless it has ended."""
        return bool(self._task.cancel())
