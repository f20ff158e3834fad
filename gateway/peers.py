import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.process.health import WRITES, reason
from agentmem.process.health_changes import HealthChanges
from agentmem.v1 import cache_store_pb2, model_pb2
from gateway import upstream
from gateway.edge.authorization import without_directories
from gateway.metrics import STORE, WORKER

ANSWER_SECONDS: Final = 1.0
"""A peer that takes longer does not serve."""

_STORE_SERVICE: Final = cache_store_pb2.DESCRIPTOR.services_by_name["CacheStoreService"].full_name


class Peers:
    """Watches the worker and the store. Event loop only: `look` once, then `watch`, which ends after `stop`.

    A change that they report, and their end, is known at once; that one hangs, within 2.5 seconds while `asked` is
    called again and again, else within 11. `answered` gets each answer: the peer and whether it serves.
    """

    def __init__(
        self,
        worker: grpc.aio.Channel,
        store: grpc.aio.Channel,
        answered: Callable[[str, bool], object],
        changed: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._worker = worker
        self._store = store
        self._answered = answered
        self._changed = changed
        self._serving = False
        self._settled = False
        self._changes: HealthChanges | None = None
        self._stopping = False
        self.loading: model_pb2.Model | None = None
        """The model for which the worker's start waits."""
        self.unready = "the inference worker was not asked yet"
        """Why no turn could run and be kept; empty if one could. The worker serves only while the store answers it."""

    async def look(self) -> None:
        """Ask both."""
        (worker, self.loading), (store, _), writes = await asyncio.gather(
            upstream.readiness(self._worker, upstream.WORKER_SERVICE, ANSWER_SECONDS),
            upstream.readiness(self._store, _STORE_SERVICE, ANSWER_SECONDS, upstream.STORE),
            _write_problem(self._store),
        )
        self._answered(WORKER, not worker)
        self._answered(STORE, not store)
        worker = without_directories(worker)
        self.unready = "; ".join(filter(None, (worker, store))) if worker else writes  # the store may be to blame
        self._settled = not (worker or store or writes)
        if self._serving != (not worker):
            self._serving = not worker
            await self._changed(self._serving)

    def asked(self) -> str:
        """Return `unready` as of the last look, and have it looked at again."""
        if self._changes is not None:
            self._changes.asked()
        return self.unready

    async def watch(self) -> None:
        followed = ((self._worker, upstream.WORKER_SERVICE), (self._store, _STORE_SERVICE), (self._store, WRITES))
        self._changes = HealthChanges(*followed)
        try:
            while not self._stopping:
                await self._changes.wait(soon=not self._settled)
                if not self._stopping:
                    await self.look()
        finally:
            await self._changes.close()

    def stop(self) -> None:
        """An answer that is under way is waited for: a call that is cut off may outlive its channel."""
        self._stopping = True
        if self._changes is not None:
            self._changes.wake()


async def _write_problem(store: grpc.aio.Channel) -> str:
    """Return why the store cannot write ledgers; empty if it can, or does not say."""
    request = health_pb2.HealthCheckRequest(service=WRITES)
    call = health_pb2_grpc.HealthStub(store).Check(request, timeout=ANSWER_SECONDS)
    try:
        if (await call).status == health_pb2.HealthCheckResponse.SERVING:
            return ""
        return without_directories(await reason(call)) or f"the {upstream.STORE} cannot write"
    except grpc.aio.AioRpcError:  # `look` asks whether it answers at all
        return ""
