"""Work for one agent holds it alone, in the order of arrival."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from agentmem.validation import AgentKey


class AgentLocks:
    """A lock per agent key, which exists only while it is held or waited for. Event loop only."""

    def __init__(self) -> None:
        self._locks: dict[AgentKey, tuple[asyncio.Lock, int]] = {}
        self._settling: dict[AgentKey, asyncio.Event] = {}

    @contextmanager
    def settling(self, key: AgentKey) -> Iterator[None]:
        """Settle a turn after its answer, under the agent's lock. Readers wait for it in `settled`."""
        done = self._settling[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._settling[key]
            done.set()

    async def settled(self, key: AgentKey) -> None:
        """Wait until the KV of an answered turn is where the next turn finds it; never for a running turn."""
        if done := self._settling.get(key):
            await done.wait()

    @asynccontextmanager
    async def hold(self, *keys: AgentKey) -> AsyncIterator[None]:
        """Wait for agents, and hold them, in one order for all callers."""
        async with AsyncExitStack() as held:
            for key in sorted(set(keys)):
                await held.enter_async_context(self._hold(key))
            yield

    @asynccontextmanager
    async def _hold(self, key: AgentKey) -> AsyncIterator[None]:
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
