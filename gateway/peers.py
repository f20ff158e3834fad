"""Which of the processes behind the gateway answer, for its metrics."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import grpc

from gateway import upstream

_SECONDS: Final = 1.0
"""How long after an answer a peer is asked again, and how long an answer may take."""


class Peers:
    """Asks the peers by turns, so that nobody who reads the metrics waits for them. Event loop only.

    `told` hears of each answer: the peer's name, and whether it is SERVING.
    """

    def __init__(self, channels: Mapping[str, grpc.aio.Channel], told: Callable[[str, bool], object]) -> None:
        self._channels = channels
        self._told = told

    async def watch(self) -> None:
        """Ask each of them again and again, until cancelled."""
        await asyncio.gather(*(self._watch(name, channel) for name, channel in self._channels.items()))

    async def _watch(self, name: str, channel: grpc.aio.Channel) -> None:
        while True:
            self._told(name, not await upstream.unready_reason(channel, "", _SECONDS))
            await asyncio.sleep(_SECONDS)
