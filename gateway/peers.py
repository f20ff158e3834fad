"""How the processes behind the gateway are, asked again and again: who wants to know is told at once, however many."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import grpc

from agentmem.v1 import cache_store_pb2, inference_pb2
from gateway import upstream
from gateway.metrics import STORE, WORKER

LOOK_SECONDS: Final = 0.25
"""From an answer to the next question. With the time that an answer may take it is how old the truth may be."""

_UNKNOWN = "the inference worker was not asked yet"


class Peers:
    """Watches the worker and the store. Event loop only: `look` once, then `watch`, which ends after `stop`.

    `told` gets each answer: the peer ("worker", "store") and whether it serves. `changed` is awaited where the worker
    begins or ceases to serve, so after the first `look` too where it does.
    """

    def __init__(
        self,
        worker: grpc.aio.Channel,
        store: grpc.aio.Channel,
        timeout: float,
        told: Callable[[str, bool], object],
        changed: Callable[[bool], Awaitable[None]],
    ) -> None:
        """`timeout`: seconds that an answer may take; a peer that takes longer does not serve."""
        self._worker = worker, inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name, upstream.WORKER
        self._store = store, cache_store_pb2.DESCRIPTOR.services_by_name["CacheStoreService"].full_name, upstream.STORE
        self._timeout = timeout
        self._told = told
        self._changed = changed
        self._serving = False
        self._stopping = asyncio.Event()
        self.unready = _UNKNOWN
        """Why no turn could run and be kept; empty if one could. The worker serves only while the store answers it."""

    async def look(self) -> None:
        """Ask both, now."""
        worker, store, writes = await asyncio.gather(
            self._reason(*self._worker),
            self._reason(*self._store),
            upstream.write_problem(self._store[0], self._timeout),
        )
        self._told(WORKER, not worker)
        self._told(STORE, not store)
        self.unready = "; ".join(filter(None, (worker, store))) if worker else writes  # the store may be to blame
        if self._serving != (not worker):
            self._serving = not worker
            await self._changed(self._serving)

    async def watch(self) -> None:
        """Ask again and again."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._stopping.wait()
                    return
            await self.look()

    def stop(self) -> None:
        """Ask no more. An answer that is under way is waited for: a call that is cut off may outlive its channel."""
        self._stopping.set()

    async def _reason(self, channel: grpc.aio.Channel, service: str, peer: str) -> str:
        return await upstream.unready_reason(channel, service, self._timeout, peer)
