"""Searches by the worker."""

import asyncio
from functools import partial
from typing import Final

from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.tracing import Threads
from inference_service.engine.thread import EngineThread
from inference_service.hub.candidates import Answer, Candidate, Found, ask, judge, search
from inference_service.models.sources import hub_host
from inference_service.settings import WorkerSettings

_AT_ONCE: Final = 4
_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 5.0


class HubSearch:
    """On threads of its own: the hub's client waits for a list without end."""

    def __init__(self, engine: EngineThread, settings: WorkerSettings, seconds: float = _SECONDS) -> None:
        self._engine = engine
        self._settings = settings
        self._seconds = seconds
        self._threads = Threads(_AT_ONCE, "hub-search")

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def find(self, words: list[str], limit: int) -> list[Candidate]:
        """Raises FailedPrecondition and Unavailable."""
        if self._settings.offline:
            raise FailedPrecondition("the worker is offline, so the hub is not asked; start it without --offline")
        asked = asyncio.get_running_loop().run_in_executor(self._threads, _ask, words, limit)
        try:
            async with asyncio.timeout(self._seconds):
                answers = await asked
        except TimeoutError:
            said = f"{hub_host()} did not answer the search within {self._seconds:g} s; try again later"
            raise Unavailable(said, _RETRY_SECONDS) from None
        return [await self._engine.call(partial(judge, *each, self._settings)) for each in answers]


def _ask(words: list[str], limit: int) -> list[tuple[Found, Answer]]:
    return list(ask(search(words, limit, any_format=False)))
