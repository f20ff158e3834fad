"""The worker as all of the gateway calls it: by requests, whose types say which RPC is meant (`agentmem.rpcs`)."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

from agentmem import errors
from agentmem.rpcs import Rpc
from agentmem.v1 import inference_pb2


class Service(Protocol):
    """Serves RPCs. All methods raise AgentmemError; cancelling them, or closing a stream, cancels the call.

    `timeout` is in seconds, None for any time.
    """

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        """Return the response of a unary RPC."""

    def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        """Yield the messages of a server's stream as they come."""


class Worker(Service, Protocol):
    """Also serves uploads."""

    async def upload(self, rpc: Rpc, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        """Return the response to a client's stream. Not all requests may have been taken where it raises."""


async def turn(
    worker: Worker, request: inference_pb2.GenerateRequest
) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
    """Yield the events of a turn. A stream without `finished` raises Unavailable.

    After `finished` the turn is whole: a failure that follows is not raised, or the caller would have the turn again.
    """
    finished = False
    try:
        async with aclosing(worker.stream(request)) as events:
            async for event in events:
                finished = finished or event.HasField("finished")
                yield event
    except errors.AgentmemError:
        if not finished:
            raise
    if not finished:
        raise errors.Unavailable("the inference worker ended the turn without finishing it")
