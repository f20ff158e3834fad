"""Measures models that serve unmeasured, between their turns, and has them loaded again with what was found."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentmem.errors import AgentmemError, Unavailable
from agentmem.process import logs
from inference_service.engine.pausing import CalledOff
from inference_service.models.loaded import OpenedModel
from inference_service.models.loading import Loader
from inference_service.models.slots import ModelSlot

log = logging.getLogger(__name__)

_QUIET_SECONDS = 2.0
"""A turn that comes in a pause waits for a piece of work; the first answer and the next turn should not."""
_LOOK_SECONDS = 0.2
_MOST_WAIT = 60.0
"""Then it begins between turns, however near they are."""
_MOST_CALLS_OFF = 3
"""The next load of a model that swaps so often measures it first."""


class Measuring:
    """One model at a time. Event loop only. `again` has a measured model loaded once nobody uses it."""

    def __init__(self, loader: Loader, again: Callable[[ModelSlot], None]) -> None:
        self._loader = loader
        self._again = again
        self._waiting: dict[ModelSlot, OpenedModel] = {}
        self._task: asyncio.Task[None] | None = None
        self._held = 0
        self._working = asyncio.Lock()

    def begin(self, slot: ModelSlot, opened: OpenedModel) -> None:
        self._waiting[slot] = opened
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    @asynccontextmanager
    async def held(self, leaving: ModelSlot | None = None) -> AsyncIterator[None]:
        """End the piece of work that runs, and begin none in the block; forget a `leaving` model's weights."""
        self._held += 1
        if leaving is not None:
            self._waiting.pop(leaving, None)
        try:
            async with self._working:
                pass
            yield
        finally:
            self._held -= 1

    def stop(self) -> None:
        self._held += 1
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            await self._quiet()
            for slot in list(self._waiting):
                if await self._measured(slot):
                    self._waiting.pop(slot, None)
                    self._again(slot)

    async def _quiet(self) -> None:
        loop = asyncio.get_running_loop()
        began = since = loop.time()
        while self._held or (loop.time() - since < _QUIET_SECONDS and loop.time() - began < _MOST_WAIT):
            await asyncio.sleep(_LOOK_SECONDS)
            if any(slot.users for slot in self._waiting):
                since = loop.time()

    async def _measured(self, slot: ModelSlot) -> bool:
        async with self._working:
            opened = self._waiting.get(slot)
            if opened is None or self._held:
                return False
            try:
                await self._loader.measure(opened, lambda: not self._held)
            except CalledOff:
                slot.called_off += 1
                slot.measured = slot.called_off >= _MOST_CALLS_OFF
                return False
            except Unavailable:  # at the worker's end
                return False
            except AgentmemError as error:
                logs.event(log, "a model cannot be measured", logging.WARNING, model=slot.model_id, error=error.message)
                if error.__cause__ is not None:  # memory, for one: it serves on as it is
                    self._waiting.pop(slot, None)
                    return False
            slot.measured = True  # the load refuses, in the same words, a model that cannot be proved
            return True
