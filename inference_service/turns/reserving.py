"""What work for one agent holds while it lasts: the agent, alone and in the order of arrival, and its memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from agentmem.validation import AgentKey
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import MemoryRequest, Reservation
from inference_service.pool.blocks import PoolError
from inference_service.turns.persisting import Persister


class AgentLocks:
    """A lock per agent key, which exists only while it is held or waited for. Event loop only."""

    def __init__(self) -> None:
        self._locks: dict[AgentKey, tuple[asyncio.Lock, int]] = {}
        self._settling: dict[AgentKey, asyncio.Event] = {}

    @contextmanager
    def settling(self, key: AgentKey) -> Iterator[None]:
        """What a turn does after its answer, under the agent's lock. Readers wait for it in `settled`."""
        done = self._settling[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._settling[key]
            done.set()

    async def settled(self, key: AgentKey) -> None:
        """Wait until the KV of an answered turn is where the next turn finds it; never for a turn that still runs."""
        if done := self._settling.get(key):
            await done.wait()

    @asynccontextmanager
    async def hold(self, *keys: AgentKey) -> AsyncIterator[None]:
        """Wait for agents, and hold them. In one order for all callers, or two of them could wait for each other."""
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


class Reservations:
    """Memory for one agent's work: reserved before it begins, given back when it ends, whatever happens in between.

    Event loop only; call it under the agent's lock. A reservation has the agent's hot state, which cannot be evicted
    meanwhile, and which work that fails puts back. `wait` is how many seconds work waits for memory.
    """

    def __init__(self, persister: Persister, wait: float) -> None:
        self._persister = persister
        self._wait = wait

    @asynccontextmanager
    async def reserve(self, model: LoadedModel, request: MemoryRequest) -> AsyncIterator[Reservation]:
        """Wait for the memory. Raises what Admission.reserve raises."""
        reservation = await model.memory.admission.reserve(request, self._wait)
        with self._used(model, request.key, reservation):
            yield reservation

    @contextmanager
    def reserve_now(self, model: LoadedModel, request: MemoryRequest) -> Iterator[Reservation | None]:
        """Reserve without waiting; None where there is no memory, as Admission.reserve_now says."""
        reservation = model.memory.admission.reserve_now(request)
        if reservation is None:
            yield None
            return
        with self._used(model, request.key, reservation):
            yield reservation

    @contextmanager
    def _used(self, model: LoadedModel, key: AgentKey, reservation: Reservation) -> Iterator[None]:
        memory = model.memory
        reservation.hot = memory.hot.take(key)
        try:
            yield
        except PoolError as error:
            memory.pool.fail(error)
            raise
        finally:
            if reservation.hot is not None and reservation.superseded:
                memory.pool.release(reservation.hot.table)
            elif reservation.hot is not None:
                memory.hot.put(key, reservation.hot)
            memory.admission.release(reservation)
            memory.check_integrity(self._persister.tables(model))
