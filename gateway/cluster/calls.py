"""One call, made on one node after the other until one has begun it.

These stand in for the calls of grpc.aio, with what the gateway's doors use of them. A node that cannot be connected to
was sent nothing, so the next one is tried; a node that was sent a call and then cannot be reached may have done it, so
only calls that may be repeated are sent to the next, and of a stream only before its first message.

A call that raises ABORTED, because another node committed a turn of the agent first, is tried once more, also only
before the stream's first message. ABORTED mostly comes later, since the commit follows the last token. The caller then
has an answer that continues a state which is not the agent's any more, and decides whether to ask again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self

import grpc

from agentmem import errors
from agentmem.validation import AgentKey
from gateway.cluster.placement import Placement

NOT_BEGUN: Final = "agentmem-not-begun"
"""Trailing metadata of a node that refuses a call because it is not ready."""

BEGUN: Final = "agentmem-begun"
"""Initial metadata of a node that takes an upload."""


@dataclass(frozen=True)
class Method:
    """An RPC, as channels make its calls. `arity` is as `agentmem.process.rpc.arity` returns it.

    `repeatable`: it may be sent again where its outcome is unknown; `turn`: it computes, and counts as load.
    """

    path: str
    arity: str
    serialize: Any
    deserialize: Any
    repeatable: bool
    turn: bool

    def on(self, channel: grpc.aio.Channel) -> Any:
        """Return what makes the call on a channel."""
        made = getattr(channel, self.arity)
        return made(self.path, request_serializer=self.serialize, response_deserializer=self.deserialize)


class Attempts:
    """The nodes that are tried for one call, and the one on which it is. `end` may be called again and again."""

    def __init__(
        self, placement: Placement, method: Method, key: AgentKey, timeout: float | None, may_abort: bool
    ) -> None:
        self._placement = placement
        self._method = method
        self._key = key
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._again = method.turn and may_abort
        self._left: list[str] = []
        self._on = ExitStack()
        self._routed = False
        self._in_doubt = False
        self._node = ""
        self.call: Any = None
        self.is_local = False
        """It is on this node's own worker, and not behind another node's door."""

    async def begin(self, *request: Any) -> Any:
        """Make the call on the next node that can be reached. Raises Unavailable where there is none."""
        if not self._routed:
            route = await self._placement.route(self._key)
            self._left, self._routed = route.nodes, True
            if self._method.turn:
                self._placement.metrics.routed.labels(route.reason).inc()
        while self._left:
            name = self._left.pop(0)
            if (channel := await self._placement.reach(name)) is not None:
                if self._method.turn:
                    self._on.enter_context(self._placement.turn(name, self._key))
                self._node, self.is_local = name, channel is self._placement.local
                self.call = self._method.on(channel)(*request, timeout=self._remaining())
                return self.call
            self._placement.metrics.rerouted.labels("unreachable").inc()
        raise errors.Unavailable("no node of the cluster that could do this can be reached; try again")

    def failed(self, error: grpc.aio.AioRpcError) -> None:
        """Return if the call, of which nothing was answered, should be tried again; else raise `error`."""
        self.end()
        if errors.is_unreachable(error) and self._left and (self._method.repeatable or _not_begun(error)):
            self._in_doubt |= self._method.turn and not _not_begun(error)
            self._placement.metrics.rerouted.labels("unreachable").inc()
            return
        if error.code() is grpc.StatusCode.ABORTED and self._again:
            self._again, self._routed = False, False
            self._placement.metrics.rerouted.labels("aborted").inc()
            return
        if self._in_doubt:
            raise errors.Unavailable(
                "the node that had the turn cannot be reached, and may have committed it; send it again under the same"
                " request_id to learn that",
                retry_after=1.0,
            ) from error
        self.lost(error)

    def lost(self, error: grpc.aio.AioRpcError) -> NoReturn:
        """Raise what a call failed with: where its node may have done it without saying so, that and the node."""
        if errors.is_unreachable(error) and not self._method.repeatable and not _not_begun(error):
            name = self._method.path.rpartition("/")[2]
            raise errors.Unavailable(
                f"{name} was sent to node {self._node!r}, which does not answer: its outcome is unknown; look at the"
                " agent, or repeat it, once the node answers or has left the cluster",
                retry_after=1.0,
            ) from error
        raise error

    def end(self) -> None:
        """Stop counting the call on its node."""
        self._on.close()

    def cancel(self) -> bool:
        """Cancel what runs."""
        self.end()
        return self.call is not None and bool(self.call.cancel())

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


class UnaryCall:
    """A call with one response, made when it is awaited."""

    def __init__(self, attempts: Attempts, request: Any) -> None:
        self._attempts = attempts
        self._request = request

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        while True:
            call = await self._attempts.begin(self._request)
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                self._attempts.failed(error)
            except BaseException:
                self._attempts.end()
                raise
            else:
                self._attempts.end()
                return answer

    def cancel(self) -> bool:
        """Cancel it, where it runs."""
        return self._attempts.cancel()


class StreamCall:
    """A call with a stream of responses, made when the first is asked for. To be read once."""

    def __init__(self, attempts: Attempts, request: Any) -> None:
        self._attempts = attempts
        self._request = request
        self._messages: AsyncIterator[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._messages is None:
            return await self._first()
        try:
            return await anext(self._messages)
        except BaseException:
            self._attempts.end()
            raise

    async def _first(self) -> Any:
        while True:
            call = await self._attempts.begin(self._request)
            messages = aiter(call)
            try:
                first = await anext(messages)
            except grpc.aio.AioRpcError as error:
                self._attempts.failed(error)
            except BaseException:
                self._attempts.end()
                raise
            else:
                self._messages = messages
                return first

    def cancel(self) -> bool:
        """Cancel it, where it runs."""
        return self._attempts.cancel()


class UploadCall:
    """A call with a stream of requests, made when the first is written. `about` makes its attempts of that, or None.

    Nothing is sent before the other node's door has said, by the call's initial metadata, that it takes the call. One
    that refuses it was sent nothing: a request on its way would make grpc.aio lose the status, and with it NOT_BEGUN.
    """

    def __init__(self, about: Callable[[Any], Attempts]) -> None:
        self._about = about
        self._attempts: Attempts | None = None

    async def write(self, request: Any) -> None:
        """Send a request. Raises as grpc.aio's does, and Unavailable."""
        if self._attempts is None:
            await self._begin(request)
        else:
            await self._attempts.call.write(request)

    async def done_writing(self) -> None:
        """Say that there are no more."""
        await (await self._begun()).done_writing()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        call = await self._begun()
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            assert self._attempts is not None, "a call that has begun has attempts"
            self._attempts.lost(error)

    async def _begun(self) -> Any:
        return await self._begin(None) if self._attempts is None else self._attempts.call

    async def _begin(self, first: Any) -> Any:
        """Return the call on a node that takes it, to which the first request was sent."""
        attempts = self._attempts = self._about(first)
        while True:
            call = await attempts.begin()
            try:
                if not attempts.is_local and not _has(BEGUN, await call.initial_metadata()):
                    await call  # it has ended
                with suppress(asyncio.InvalidStateError):  # it has ended, and says so
                    if first is not None:
                        await call.write(first)
            except grpc.aio.AioRpcError as error:
                attempts.failed(error)
            else:
                return call

    def cancel(self) -> bool:
        """Cancel it, where it runs."""
        return self._attempts is not None and self._attempts.cancel()


def _not_begun(error: grpc.aio.AioRpcError) -> bool:
    return _has(NOT_BEGUN, error.trailing_metadata())


def _has(name: str, metadata: Any) -> bool:
    return any(key == name for key, _ in metadata or ())
