"""The worker as all of the gateway calls it: the type of a request says which RPC is meant."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from agentmem.rpcs import Rpc


class Service(Protocol):
    """All methods raise AgentmemError; cancelling them, or closing a stream, cancels the call.

    `timeout` is in seconds, None for any time.
    """

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        """Return the response of a unary RPC."""

    def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        """Yield the messages of a server's stream."""


class Worker(Service, Protocol):
    """Also serves uploads."""

    async def upload(self, rpc: Rpc, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        """Return the response to a client's stream. Not all requests may have been taken where it raises."""
