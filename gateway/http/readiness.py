"""Whether a turn could run, for all who want to know."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

HOLDS_SECONDS: Final = 0.5


class Readiness:
    """The answer to `ask`: why nothing can run, empty if it can. Event loop only.

    Anybody may want to know, as often as they like, so the worker is asked once for all who do within HOLDS_SECONDS.
    """

    def __init__(
        self, ask: Callable[[], Coroutine[Any, Any, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asked: asyncio.Task[str] | None = None
        self._until = 0.0

    async def reason(self) -> str:
        """What `ask` says, asked less than HOLDS_SECONDS ago."""
        now = self._clock()
        if self._asked is None or now >= self._until:
            self._asked, self._until = asyncio.create_task(self._ask()), now + HOLDS_SECONDS
        return await asyncio.shield(self._asked)  # one who goes away takes no answer from the others
