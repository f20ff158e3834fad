"""When to check other processes' health again, by their Watch streams."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

QUIET_SECONDS: Final = 10.0
"""Between checks without news: a process that hangs ends no stream."""

SOON_SECONDS: Final = 0.25
"""The same while something does not serve or callers ask."""


class HealthChanges:
    """Follows services, each a channel and its full name. Event loop only: `wait` repeatedly, then `close` before the
    channels.

    A message or the end of a stream is only news: Check has a deadline and gives a reason.
    """

    def __init__(self, *services: tuple[grpc.aio.Channel, str]) -> None:
        self._news = asyncio.Event()
        self._waited = 0.0
        self._open: set[int] = set()
        self._streams = [
            asyncio.create_task(self._follow(number, channel, name)) for number, (channel, name) in enumerate(services)
        ]

    @property
    def followed(self) -> bool:
        return len(self._open) == len(self._streams)

    async def wait(self, *, soon: bool) -> None:
        """Return at news since the last call, or after a while; `soon`: something does not serve."""
        seconds = SOON_SECONDS if soon or not self.followed else QUIET_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        self._waited = time.monotonic()

    def asked(self) -> None:
        """Let `wait` return for a caller, at most once in SOON_SECONDS."""
        if time.monotonic() > self._waited + SOON_SECONDS:
            self._news.set()

    def wake(self) -> None:
        self._news.set()

    async def close(self) -> None:
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
            except grpc.aio.AioRpcError:  # it is unreachable or has ended
                pass
            finally:
                call.cancel()
            if number in self._open:
                self._open.remove(number)
                self._news.set()
            await asyncio.sleep(SOON_SECONDS)
