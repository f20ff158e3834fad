"""Calls that are tried again through an outage. Imports little, because commands start often."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from agentmem import errors

_SHORTEST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 10.0

_T = TypeVar("_T")

Failure = grpc.aio.AioRpcError | errors.AgentmemError


class Patience:
    """How long the outages of one call are waited for: up to `seconds` each. Event loop.

    An outage begins with the first failure, which `on_outage` gets. An attempt that went on for longer than
    `well_after` seconds had found all well, and what ended it is another outage; so it is after `renew`.
    """

    def __init__(
        self,
        seconds: float,
        *,
        well_after: float = math.inf,
        on_outage: Callable[[Failure], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._well_after, self._on_outage, self._clock = seconds, well_after, on_outage, clock
        self._ends: float | None = None
        self._began = clock()

    def begin(self) -> None:
        """Say that an attempt begins."""
        self._began = self._clock()

    def renew(self) -> None:
        """Say that all is well: whatever fails from now on is another outage."""
        self._ends = None

    def has(self, failure: Failure, delay: float) -> bool:
        """Return whether there is another attempt, `delay` seconds after the `failure` of the one that began last."""
        now = self._clock()
        if self._ends is None or now > self._began + self._well_after:
            self._ends = now + self._seconds
            self._on_outage(failure)
        return now + delay <= self._ends


async def retry(
    attempt: Callable[[], Awaitable[_T]],
    wait: Callable[[Failure], float | None],
    patience: float,
    *,
    well_after: float = math.inf,
    on_outage: Callable[[Failure], None] = lambda _: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Return the result of `attempt`, tried again through outages of up to `patience` seconds each. Event loop.

    `wait` returns in how many seconds to try again after a failure; None: it does not pass. The rest is as in Patience.
    Raises the last failure, without a wait that is too long.
    """
    outages = Patience(patience, well_after=well_after, on_outage=on_outage, clock=clock)
    while True:
        outages.begin()
        try:
            return await attempt()
        except (grpc.aio.AioRpcError, errors.AgentmemError) as failure:
            delay = wait(failure)
            if delay is None or not outages.has(failure, delay):
                raise
        await sleep(delay)


def retry_delay(failure: errors.Unavailable | errors.ResourceExhausted) -> float:
    """Return a failure's seconds, within bounds: none would be a busy loop, and a minute outlives most outages."""
    return min(max(failure.retry_after, _SHORTEST_WAIT), _LONGEST_WAIT)
