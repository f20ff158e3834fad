"""Erasures that are not over: rows and files are gone, but the database could not be scrubbed.

Bytes of what was erased may then still be in the database file or its WAL. The caller is asked to try again, and the
repetition, which finds nothing to erase any more, has to be answered by what the first attempt did.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from agentmem.errors import NotFound
from cache_service.ledger.ledgers import Ledgers

MOST = 1000
"""Unfinished erasures that are remembered; of older ones a repetition is NotFound, also after a restart."""


class Erased(NamedTuple):
    """How many things were erased, and the bytes of KV that were freed."""

    things: int
    freed_bytes: int = 0


class Erasures:
    """Finishes erasures. Use from one event loop."""

    def __init__(self, database: Ledgers, finish_files: Callable[[], Awaitable[None]]) -> None:
        """`finish_files` has files follow the ledger, and scrubs their rows."""
        self._database = database
        self._finish_files = finish_files
        self._unfinished: dict[tuple[str, ...], Erased] = {}

    async def erase(self, name: tuple[str, ...], erase: Callable[[], Awaitable[Erased]]) -> Erased:
        """Run the erasure of `name`, then `finish` it.

        Raises what `erase` and `finish` raise; NotFound only where no attempt before has erased it.
        """
        missing, erased = None, Erased(0)
        try:
            erased = await erase()
        except NotFound as error:
            missing = error
        total = await self.finish(name, erased)
        if missing is not None and not total.things:
            raise missing
        return total

    async def finish(self, name: tuple[str, ...], erased: Erased) -> Erased:
        """Scrub the databases; what this erasure of `name` and those before it that could not be finished erased.

        Raises Unavailable and ResourceExhausted as Database.scrub does: repeat the erasure and call this again.
        """
        before = self._unfinished.pop(name, Erased(0))
        total = Erased(before.things + erased.things, before.freed_bytes + erased.freed_bytes)
        if total.things or self._database.scrub_owed:
            self._unfinished[name] = total
            if len(self._unfinished) > MOST:
                del self._unfinished[next(iter(self._unfinished))]
            await self._finish_files()
            await asyncio.wrap_future(self._database.scrub())
            self._unfinished.pop(name, None)
        return total
