"""Retries through outages. Imports little, because commands start often."""

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
    """Time to retry one call through outages of up to `seconds` each. Event loop.

    An outage begins with the first failure, which `on_outage` gets, and ends with `renew`, or an attempt longer than
    `well_after` seconds.
    """

    def __init__(
        self,
        seconds: float,
        *,
        well_after: float = math.inf,
        on_outage: Callable[[Failure], None] = lambda _: None,
    ) -> None:
        self._seconds, self._well_after, self._on_outage = seconds, well_after, on_outage
        self._ends: float | None = None
        self.begin()

    def begin(self) -> None:
        self._began = time.monotonic()

    def renew(self) -> None:
        self._ends = None

    def has(self, failure: Failure, delay: float) -> bool:
        now = time.monotonic()
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
) -> _T:
    """Return the result of `attempt`, retried with `Patience`. Event loop.

    `wait` returns the seconds before a retry; None: a permanent failure. Raises the last failure.
    """
    outages = Patience(patience, well_after=well_after)
    while True:
        outages.begin()
        try:
            return await attempt()
        except (grpc.aio.AioRpcError, errors.AgentmemError) as failure:
            delay = wait(failure)
            if delay is None or not outages.has(failure, delay):
                raise
        await asyncio.sleep(delay)


def retry_delay(failure: errors.Unavailable | errors.ResourceExhausted) -> float:
    """Return a failure's delay within bounds."""
    return min(max(failure.retry_after, _SHORTEST_WAIT), _LONGEST_WAIT)
