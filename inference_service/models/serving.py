"""Models as requests use them; waiting for one loads it.

All waiters enter together. A late request is told when to retry; its swap continues.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.process.models import RegisteredModel
from inference_service.models.loaded import LoadedModel
from inference_service.models.opening import ModelInfo
from inference_service.models.slots import ModelSlot, Progress
from inference_service.models.swapping import Swapper

_RETRY_SECONDS = 2.0


class Models(Swapper):
    async def start(self) -> LoadedModel:
        """Serve, and load the default model. Raises loading's errors; others are served even then."""
        self._begin()
        return await self._load_and_leave(self.slots[self.default])

    def slot(self, model_id: str) -> ModelSlot:
        """Raises NotFound."""
        try:
            return self.slots[model_id]
        except KeyError:
            raise NotFound("model", model_id, f"registered are {', '.join(self.slots)}") from None

    def loaded(self, model_id: str) -> LoadedModel | None:
        slot = self.slots.get(model_id)
        return slot.loaded if slot else None

    async def info(self, model_id: str) -> ModelInfo:
        """Raises FailedPrecondition."""
        slot = self.slot(model_id)
        if slot.info is None:
            slot.info = await self._loader.info(slot.registered)
        return slot.info

    @asynccontextmanager
    async def use(self, model_id: str) -> AsyncIterator[LoadedModel]:
        """Wait for a model, and keep it. Raises NotFound, Unavailable in time, loading's errors."""
        slot = self.slot(model_id)
        model = slot.enter() if slot.open else await self._wait_in_time(slot)
        try:
            yield model
        finally:
            self._leave(slot)

    @asynccontextmanager
    async def hold(self, model_id: str) -> AsyncIterator[LoadedModel]:
        """Yield a model that is loaded, or comes anyway. Raises FailedPrecondition rather than swap."""
        slot = self.slot(model_id)
        if not (slot.open or slot.wanted):
            raise FailedPrecondition(
                f"model {model_id!r} is not loaded, and this would load none; LoadModel does, and so does any turn"
            )
        async with self.use(model_id) as model:
            yield model

    async def load(self, model_id: str) -> AsyncGenerator[Progress]:
        """Raises loading's errors."""
        slot = self.slot(model_id)
        if slot.open:
            return
        async with aclosing(_followed(slot, self._load_and_leave(slot))) as steps:
            async for step in steps:
                yield step

    async def pull(self, model_id: str) -> AsyncGenerator[Progress]:
        """Download a hub's model, and register it. Raises FailedPrecondition and Unavailable."""
        known = self.slots.get(model_id)
        slot = ModelSlot(known.registered if known else RegisteredModel(model_id, model_id))
        async with aclosing(_followed(slot, self._loader.fetch(slot.registered, slot.report))) as steps:
            async for step in steps:
                yield step
        if model_id not in self.slots:
            self.slots[model_id] = ModelSlot(slot.registered)
            self._listener.registered(model_id)

    async def unload(self, model_id: str) -> int:
        """Unload after the model's requests, unless cancelled; return bytes freed."""
        return await self._unload(self.slot(model_id), "request", lambda: True)

    # Waiting.

    async def _load_and_leave(self, slot: ModelSlot) -> LoadedModel:
        model = slot.enter() if slot.open else await self._wait(slot)
        self._leave(slot)
        return model

    async def _wait_in_time(self, slot: ModelSlot) -> LoadedModel:
        try:
            async with asyncio.timeout(self._swap_wait):
                return await self._wait(slot)
        except TimeoutError:
            if slot.open:  # at the last moment
                return slot.enter()
            slot.wanted = True  # the client will retry
            raise Unavailable(
                f"model {slot.model_id!r} is not loaded yet ({self._waits_for(slot)}); try again",
                retry_after=_RETRY_SECONDS,
            ) from None

    async def _wait(self, slot: ModelSlot) -> LoadedModel:
        waiter: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        self._want(slot)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave(slot)
            with suppress(ValueError):
                slot.waiters.remove(waiter)
            if not slot.waiters:
                slot.wanted = False
                self._notify()
            raise

    def _leave(self, slot: ModelSlot) -> None:
        slot.leave()
        self._notify()


async def _followed(slot: ModelSlot, work: Coroutine[Any, Any, Any]) -> AsyncGenerator[Progress]:
    """Yield the slot's progress until the work is done; leaving ends the work. Raises its errors."""
    task = asyncio.create_task(work)
    try:
        async with aclosing(slot.follow(task)) as steps:
            async for step in steps:
                yield step
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
