"""Memory for one agent's work: taken before it begins, given back when it ends, whatever happens in between."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from agentmem.keys import AgentKey
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Demand, Room
from inference_service.pool.blocks import PoolError
from inference_service.turns.persisting import Persister


class Rooms:
    """Hands out rooms. Event loop only. `wait` is how many seconds somebody waits for one."""

    def __init__(self, persister: Persister, wait: float) -> None:
        self._persister = persister
        self._wait = wait

    @asynccontextmanager
    async def enter(self, model: LoadedModel, demand: Demand) -> AsyncIterator[Room]:
        """A room, with the agent's hot state. Nobody can evict that meanwhile, and work that fails puts it back.

        Call it under the agent's lock. Raises what Admission.enter raises.
        """
        room = await model.memory.admission.enter(demand, self._wait)
        with self._used(model, demand.key, room):
            yield room

    @contextmanager
    def enter_at_once(self, model: LoadedModel, demand: Demand) -> Iterator[Room | None]:
        """Likewise, or None: without waiting, and only as Admission.enter_at_once gives it."""
        room = model.memory.admission.enter_at_once(demand)
        if room is None:
            yield None
            return
        with self._used(model, demand.key, room):
            yield room

    @contextmanager
    def _used(self, model: LoadedModel, key: AgentKey, room: Room) -> Iterator[None]:
        memory = model.memory
        room.hot = memory.hot.take(key)
        try:
            yield
        except PoolError as error:
            memory.pool.fail(error)
            raise
        finally:
            if room.hot is not None and room.superseded:
                memory.pool.release(room.hot.table)
            elif room.hot is not None:
                memory.hot.put(key, room.hot)
            memory.admission.leave(room)
            memory.check_integrity(self._persister.tables(model))
