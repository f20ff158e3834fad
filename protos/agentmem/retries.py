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

    `wait` returns in how many seconds to try again after a failure; None: it does not pass. An outage begins with the
    first failure, which `on_outage` gets. An attempt that went on for longer than `well_after` seconds had found all
    well, and what ended it is another outage. Raises the last failure, without a wait that is too long.
    """
    deadline: float | None = None
    while True:
        began = clock()
        try:
            return await attempt()
        except (grpc.aio.AioRpcError, errors.AgentmemError) as failure:
            delay = wait(failure)
            if delay is None:
                raise
            now = clock()
            if deadline is None or now > began + well_after:
                deadline = now + patience
                on_outage(failure)
            if now + delay > deadline:
                raise
        await sleep(delay)


def retry_delay(failure: errors.Unavailable | errors.ResourceExhausted) -> float:
    """Return a failure's seconds, within bounds: none would be a busy loop, and a minute outlives most outages."""
    return min(max(failure.retry_after, _SHORTEST_WAIT), _LONGEST_WAIT)
