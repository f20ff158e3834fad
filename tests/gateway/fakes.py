"""A worker in the test's own process."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from agentmem.rpcs import Rpc, rpc_of


class FakeWorker:
    """A Worker whose RPCs are methods of their names, given the request alone."""

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        return await getattr(self, rpc_of(request).method.name)(request)

    async def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        async with aclosing(getattr(self, rpc_of(request).method.name)(request)) as messages:
            async for message in messages:
                yield message

    async def upload(self, rpc: Rpc, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        return await getattr(self, rpc.method.name)(requests)
