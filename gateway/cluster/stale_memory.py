"""Drops KV of agents that other nodes changed or erased while this node was cut off.

Deletions do not wait for a node whose lease is over: when it is back, its gateway checks the agents whose turns ran
here.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import Final

from agentmem import errors
from agentmem.process.logs import event
from agentmem.retries import Failure, retry
from agentmem.v1 import agent_pb2, cluster_pb2, types_pb2
from agentmem.validation import AgentKey
from gateway.worker import Worker

log = logging.getLogger(__name__)

_REMEMBERED: Final = 10_000
"""Agents with the last turns."""
_SECONDS: Final = 10.0
"""A call may wait for a turn of the agent."""
_PAUSE: Final = 2.0
"""Before an unanswered call is repeated."""


class StaleMemory:
    """Event loop only. `close` once."""

    def __init__(self, store: Worker, worker: Worker, own: str) -> None:
        self._store = store
        self._worker = worker
        self._own = own
        self._spoke: OrderedDict[AgentKey, None] = OrderedDict()
        self._dropping: asyncio.Task[None] | None = None

    def note(self, key: AgentKey) -> None:
        self._spoke[key] = None
        self._spoke.move_to_end(key)
        if len(self._spoke) > _REMEMBERED:
            self._spoke.popitem(last=False)

    def drop(self) -> None:
        if self._dropping is not None:
            self._dropping.cancel()
        self._dropping = asyncio.create_task(self._drop(list(self._spoke)))

    async def close(self) -> None:
        if self._dropping is not None:
            self._dropping.cancel()
            await asyncio.wait({self._dropping})

    async def _drop(self, keys: list[AgentKey]) -> None:
        dropped = 0
        for key in keys:
            with suppress(errors.AgentmemError):
                dropped += await retry(partial(self._drop_one, key), _pause, math.inf)
        if dropped:
            event(log, "KV of agents that changed elsewhere was dropped from memory", agents=dropped)

    async def _drop_one(self, key: AgentKey) -> bool:
        """Drop an agent's KV, unless this node made its present state."""
        agent = key.to_proto()
        found = await self._store.call(cluster_pb2.LocateAgentRequest(key=agent), _SECONDS)
        if found.last_on == self._own:
            return False
        request = agent_pb2.EvictAgentRequest(key=agent, tier=types_pb2.TIER_HOT)
        with suppress(errors.NotFound):  # then the worker has dropped it
            await self._worker.call(request, _SECONDS)
        return True


def _pause(failure: Failure) -> float | None:
    return _PAUSE if isinstance(failure, errors.Unavailable | errors.DeadlineExceeded) else None
