"""Requests a minute are counted by the generic cell rate algorithm: a bucket that fills evenly, kept as the time at
which it would be full again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from agentmem.errors import ResourceExhausted, Unauthenticated
from gateway.edge.callers import Caller

_MINUTE: Final = 60.0
_BUSY_SECONDS: Final = 1.0
_MANY: Final = 1024


def next_full(full_at: float, now: float, per_minute: int) -> tuple[float, float]:
    """Take one request of a bucket that is full at `full_at`: (when it is full then, 0.0), in seconds.

    Where the bucket is empty nothing is taken: (`full_at`, the seconds until there is room).
    """
    after = max(full_at, now) + _MINUTE / per_minute
    wait = after - now - _MINUTE
    return (full_at, wait) if wait > 1e-9 else (after, 0.0)


@dataclass
class _Usage:
    full_at: float = 0.0
    running: dict[asyncio.Timeout, Caller] = field(default_factory=dict)


class Admission:
    """By callers' keys. Event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usage: dict[str, _Usage] = {}

    @asynccontextmanager
    async def admitted(self, who: Caller) -> AsyncIterator[None]:
        """Run the block in one task.

        Raises ResourceExhausted for too many at once or a minute, and Unauthenticated where the key is revoked
        meanwhile.
        """
        usage = self._charge(who)
        ending = asyncio.timeout(None)
        try:
            async with ending:
                usage.running[ending] = who
                yield
        except TimeoutError:
            if ending.expired():
                raise Unauthenticated("the key was revoked, or has expired, while the request ran") from None
            raise
        finally:
            usage.running.pop(ending, None)

    def end(self, stands: Callable[[Caller], bool]) -> int:
        """End the running requests of callers who don't stand any more; return how many."""
        running = [(usage, ending) for usage in self._usage.values() for ending in usage.running]
        fallen = [(usage, ending) for usage, ending in running if not stands(usage.running[ending])]
        for usage, ending in fallen:
            del usage.running[ending]  # once: it cannot be ordered again
            ending.reschedule(asyncio.get_running_loop().time())
        return len(fallen)

    def _charge(self, who: Caller) -> _Usage:
        now = self._clock()
        if len(self._usage) > _MANY:
            self._usage = {key: usage for key, usage in self._usage.items() if usage.running or usage.full_at > now}
        usage = self._usage.setdefault(who.key_id, _Usage())
        limits = who.limits
        if limits.running and len(usage.running) >= limits.running:
            raise ResourceExhausted(
                f"{limits.running} requests of this caller are running, and no more may at once; wait for one to end",
                _BUSY_SECONDS,
            )
        if limits.per_minute:
            usage.full_at, wait = next_full(usage.full_at, now, limits.per_minute)
            if wait:
                raise ResourceExhausted(f"this caller may send {limits.per_minute} requests a minute; slow down", wait)
        return usage
