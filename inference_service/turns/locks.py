"""Strictly one thing at a time per agent, in the order of arrival."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentmem.keys import AgentKey


class AgentLocks:
    """A lock per agent key, which exists only while somebody holds it or waits for it. Event loop only."""

    def __init__(self) -> None:
        self._locks: dict[AgentKey, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: AgentKey) -> AsyncIterator[None]:
        """Wait for the agent, and hold it."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
