"""When to ask other processes for their health again: they say so, by the Watch streams of gRPC's health service."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

QUIET_SECONDS: Final = 10.0
"""From one question to the next while nothing happens and nobody asks: a process that hangs ends no stream."""

SOON_SECONDS: Final = 0.25
"""The same while something does not serve or cannot be followed, and while somebody asks."""


class HealthChanges:
    """Follows services of other processes. Event loop only: `wait` again and again, `close` once, before the channels.

    A stream's messages and its end are news; what is the case is asked by a Check, which has a deadline and a reason.
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
        """Return when the health should be asked for: at news, of which one may be old, or after a while without.

        `soon`: something does not serve, or did not answer.
        """
        seconds = SOON_SECONDS if soon or not self.followed else QUIET_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        self._waited = time.monotonic()

    def asked(self) -> None:
        """Somebody wants to know: `wait` returns, but where it did so lately."""
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
