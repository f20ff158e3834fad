"""Keeps a Mac's GPU from clocking down, and its memory wired, between turns."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Final

import mlx.core as mx
import psutil

from agentmem.errors import Unavailable
from inference_service.engine.device import working_set
from inference_service.engine.thread import EngineThread

_PAUSE: Final = 1.0
_BATTERY_SECONDS: Final = 60.0
_WIDTH: Final = 256


class KeepWarm:
    """While turns ended within `seconds` and none is there, computes a product each second, on Metal. Event loop
    only.
    """

    def __init__(
        self,
        engine: EngineThread,
        seconds: float,
        busy: Callable[[], bool],
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._seconds = seconds if working_set() is not None else 0.0
        self._busy = busy
        self._pause = pause
        self._now = now
        self._until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._plugged, self._looked = True, -_BATTERY_SECONDS

    def turn_ended(self) -> None:
        self._until = self._now() + self._seconds
        if self._seconds and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        with suppress(Unavailable):  # the engine has ended
            while self._now() < self._until:
                await self._pause(_PAUSE)
                if not self._busy() and not self._engine.asked and self._is_plugged():
                    await self._engine.call(_tick)

    def _is_plugged(self) -> bool:
        if self._now() - self._looked >= _BATTERY_SECONDS:
            battery = psutil.sensors_battery()
            self._plugged, self._looked = battery is None or battery.power_plugged is not False, self._now()
        return self._plugged


def _tick() -> None:
    """Engine thread."""
    mx.eval(_matrix() @ _matrix())


@cache
def _matrix() -> mx.array:
    matrix = mx.ones((_WIDTH, _WIDTH), mx.float16)
    mx.eval(matrix)
    return matrix
