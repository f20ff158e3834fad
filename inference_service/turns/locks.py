"""Agents are held by one task at a time, in the order of arrival."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from agentmem.validation import AgentKey


class AgentLocks:
    """A lock for each agent in use. Event loop only."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[AgentKey, asyncio.Lock] = WeakValueDictionary()
        self._settling: dict[AgentKey, asyncio.Event] = {}

    @contextmanager
    def settling(self, key: AgentKey) -> Iterator[None]:
        """Settle a turn after its answer, under the lock."""
        done = self._settling[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._settling[key]
            done.set()

    async def settled(self, key: AgentKey) -> None:
        """Wait until an answered turn's KV is where the next turn finds it."""
        if done := self._settling.get(key):
            await done.wait()

    @asynccontextmanager
    async def hold(self, *keys: AgentKey) -> AsyncIterator[None]:
        """All callers hold agents in one order."""
        async with AsyncExitStack() as held:
            for key in sorted(set(keys)):
                await held.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield
