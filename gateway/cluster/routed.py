"""The Worker of a node's gateway: calls about an agent go to the agent's node, all others to the node's own worker.

A node that cannot be connected to was sent nothing, so the next one is tried; one that was sent a call may have done
it, so only repeatable calls go to the next. A turn that raises ABORTED is tried once more. No stream is repeated after
its first message.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from typing import Any, Final

import grpc

from agentmem import errors
from agentmem.rpcs import Rpc, rpc_of
from agentmem.v1 import agent_pb2, inference_pb2, options_pb2, types_pb2
from gateway.cluster.membership import key_of
from gateway.cluster.placement import Placement
from gateway.upstream import Unreachable
from gateway.worker import Worker

_TELL_SECONDS: Final = 5.0

NOT_BEGUN: Final = "agentmem-not-begun"
"""Trailing metadata of a node that is not ready."""


class RoutedWorker:
    """A turn that is sent to two nodes is one: it gets a request_id."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        match request:
            case inference_pb2.AbortRequest():
                return await self._abort(request, timeout)
            case agent_pb2.SetTurnHintsRequest():
                return await self._hint(request, timeout)
            case agent_pb2.DeleteAgentRequest():
                return await self._delete(request, timeout)
        if rpc_of(request).options.place == options_pb2.PLACE_AGENT:
            return await self._call(request, timeout)
        return await self._placement.local.call(request, timeout)

    async def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        if rpc_of(request).options.place != options_pb2.PLACE_AGENT:
            async with aclosing(self._placement.local.stream(request, timeout)) as messages:
                async for message in messages:
                    yield message
            return
        attempts = _Attempts(self._placement, request, timeout)
        while True:
            async with attempts as worker:
                async with aclosing(worker.stream(request, attempts.remaining)) as messages:
                    async for message in messages:
                        attempts.answered = True
                        yield message
                return

    async def upload(self, rpc: Rpc, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        """Import here: no node has the agent yet."""
        return await self._placement.local.upload(rpc, requests, timeout)

    async def _call(self, request: Any, timeout: float | None) -> Any:
        attempts = _Attempts(self._placement, request, timeout)
        while True:
            async with attempts as worker:
                return await worker.call(request, attempts.remaining)

    async def _abort(self, request: Any, timeout: float | None) -> Any:
        _, told = await self._told(request)
        answers = [one for one in told if one is not None]
        if not answers:  # the own worker says why
            return await self._placement.local.call(request, timeout)
        return next((one for one in answers if one.aborted), answers[0])

    async def _hint(self, request: Any, timeout: float | None) -> Any:
        others = (self._tell(each, request) for each in self._placement.others())
        answer, *_ = await asyncio.gather(self._placement.local.call(request, timeout), *others)
        return answer

    async def _delete(self, request: Any, timeout: float | None) -> Any:
        """Delete an agent, and have all nodes drop its KV from memory, even if it is gone, or its deletion is not
        finished.
        """
        try:
            answer = await self._call(request, timeout)
        except (errors.NotFound, errors.Unavailable):
            await self._forget(request)
            raise
        if unheard := await self._forget(request):
            raise errors.Unavailable(
                f"the agent is deleted, but {', '.join(unheard)} may still have KV of it in memory; repeat this to be"
                " sure",
                retry_after=1.0,
            )
        return answer

    async def _forget(self, request: Any) -> list[str]:
        """Have live nodes drop an agent's KV; return those that did not answer."""
        if request.key.model_id:
            hot: Any = agent_pb2.EvictAgentRequest(key=request.key, tier=types_pb2.TIER_HOT)
        else:
            hot = agent_pb2.DeleteAgentRequest(key=request.key, allow_missing=True)
        nodes, told = await self._told(hot)
        return [name for name, answer in zip(nodes, told, strict=True) if answer is None]

    async def _told(self, request: Any) -> tuple[list[str], list[Any]]:
        """Return all live nodes, and their answers."""
        nodes = self._placement.live()
        return nodes, await asyncio.gather(*(self._tell(name, request) for name in nodes))

    async def _tell(self, name: str, request: Any) -> Any:
        """Return the answer, or NotFound; None for others."""
        if (worker := await self._placement.reach(name)) is None:
            return None
        try:
            return await worker.call(request, _TELL_SECONDS)
        except errors.NotFound as missing:
            return missing
        except errors.AgentmemError:
            return None


class _Attempts:
    """Attempts at one call: enter it for the next node's Worker. No failure is passed over once a stream has
    `answered`.
    """

    def __init__(self, placement: Placement, request: Any, timeout: float | None) -> None:
        self._placement = placement
        self._key = key_of(request.key)
        self._rpc = rpc_of(request)
        self._turn = self._rpc.options.turn
        if self._turn and self._key.agent_id and not request.request_id:
            request.request_id = f"node-{uuid.uuid4().hex}"
        self._again = self._turn and not (request.HasField("if_version") or request.if_revision)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._left: list[str] = []
        self._node = ""
        self._on = ExitStack()
        self._routed = self._in_doubt = self.answered = False

    @property
    def remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    async def __aenter__(self) -> Worker:
        """Raise Unavailable where no node can be reached."""
        if not self._routed:
            route = await self._placement.route(self._key)
            self._left, self._routed = route.nodes, True
            if self._turn:
                self._placement.metrics.routed.labels(route.reason).inc()
        while self._left:
            name = self._left.pop(0)
            if (worker := await self._placement.reach(name)) is not None:
                self._node = name
                if self._turn:
                    self._on.enter_context(self._placement.turn(name, self._key))
                return worker
            self._placement.metrics.rerouted.labels("unreachable").inc()
        raise errors.Unavailable("no node of the cluster that could do this can be reached; try again")

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        """Raises Unavailable where the outcome is unknown."""
        self._on.close()
        if not isinstance(error, errors.AgentmemError) or self.answered:
            return False
        unreachable, repeatable = isinstance(error, Unreachable), self._rpc.options.repeatable
        begun = not _not_begun(error)
        if unreachable and self._left and (repeatable or not begun):
            self._in_doubt |= self._turn and begun
            self._placement.metrics.rerouted.labels("unreachable").inc()
            return True
        if isinstance(error, errors.Aborted) and self._again:
            self._again, self._routed = False, False
            self._placement.metrics.rerouted.labels("aborted").inc()
            return True
        if self._in_doubt:
            raise errors.Unavailable(
                "the node that had the turn cannot be reached, and may have committed it; send it again under the same"
                " request_id to learn that",
                retry_after=1.0,
            ) from error
        if unreachable and begun and not repeatable:
            raise errors.Unavailable(
                f"{self._rpc.method.name} was sent to node {self._node!r}, which does not answer: its outcome is"
                " unknown; look at the agent, or repeat it, once the node answers or has left the cluster",
                retry_after=1.0,
            ) from error
        return False


def _not_begun(error: errors.AgentmemError) -> bool:
    failed = error.__cause__
    sent: Any = failed.trailing_metadata() if isinstance(failed, grpc.aio.AioRpcError) else None
    return any(key == NOT_BEGUN for key, _ in sent or ())
