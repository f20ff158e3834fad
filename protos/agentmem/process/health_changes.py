"""When to ask other processes for their health again: when their Watch streams, of gRPC's health service, say so."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

QUIET_SECONDS: Final = 10.0
"""Between two looks at the health without news and without callers who ask: a process that hangs ends no stream."""

SOON_SECONDS: Final = 0.25
"""The same while something does not serve or cannot be followed, and while callers ask."""


class HealthChanges:
    """Follows services of other processes. Event loop only: `wait` again and again, `close` once, before the channels.

    A message or the end of a stream is news, and no more than that: the caller then asks by Check, which has a deadline
    and gives a reason.
    """

    def __init__(self, *services: tuple[grpc.aio.Channel, str]) -> None:
        """Follow these, each the channel to a process and the full name of one of its services, from now on."""
        self._news = asyncio.Event()
        self._waited = 0.0
        self._open: set[int] = set()
        self._streams = [
            asyncio.create_task(self._follow(number, channel, name)) for number, (channel, name) in enumerate(services)
        ]

    @property
    def followed(self) -> bool:
        """All streams are open."""
        return len(self._open) == len(self._streams)

    async def wait(self, *, soon: bool) -> None:
        """Return when the health should be asked for: at news, or after a while without. What came since the last
        call counts as news, even if the caller has asked since then.

        `soon`: something does not serve, or did not answer.
        """
        seconds = SOON_SECONDS if soon or not self.followed else QUIET_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        self._waited = time.monotonic()

    def asked(self) -> None:
        """Let `wait` return for a caller who wants to know the health, unless it did so less than SOON_SECONDS ago."""
        if time.monotonic() > self._waited + SOON_SECONDS:
            self._news.set()

    def wake(self) -> None:
        """Let `wait` return."""
        self._news.set()

    async def close(self) -> None:
        """Follow nothing any more."""
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def _follow(self, number: int, channel: grpc.aio.Channel, name: str) -> None:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        while True:
            call = watch(health_pb2.HealthCheckRequest(service=name))
            try:
                async for _ in call:
                    self._open.add(number)
                    self._news.set()
            except grpc.aio.AioRpcError:  # it cannot be reached, or has ended
                pass
            finally:
                call.cancel()
            if number in self._open:
                self._open.remove(number)
                self._news.set()
            await asyncio.sleep(SOON_SECONDS)
