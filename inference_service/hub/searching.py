"""Searches by the worker."""

import asyncio
from functools import partial

from agentmem.errors import FailedPrecondition
from inference_service.engine.thread import EngineThread
from inference_service.hub.candidates import Candidate, ask, judge, search
from inference_service.models.fitting import KVLimits
from inference_service.settings import WorkerSettings


class HubSearch:
    def __init__(self, engine: EngineThread, settings: WorkerSettings) -> None:
        self._engine = engine
        self._offline = settings.offline
        self._given = KVLimits.of(settings)

    async def find(self, words: list[str], limit: int) -> list[Candidate]:
        """Raises FailedPrecondition and Unavailable."""
        if self._offline:
            raise FailedPrecondition("the worker is offline, so the hub is not asked; start it without --offline")
        found = await asyncio.to_thread(search, words, limit, any_format=False)
        answers = await asyncio.to_thread(lambda: list(ask(found)))
        return [await self._engine.call(partial(judge, each, answer, self._given)) for each, answer in answers]
