"""The system's memory pressure on macOS, where device and system share one pool."""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import mlx.core as mx

from agentmem.errors import Unavailable
from agentmem.process import logs
from agentmem.process.macos import sysctl_int
from inference_service.engine.thread import EngineThread
from inference_service.models.loaded import LoadedModel
from inference_service.pool.growing import Pressure

log = logging.getLogger(__name__)

ON_MACOS = bool(sys.platform == "darwin")
_LOOK_SECONDS = 1.0


def pressure_level() -> int:
    return sysctl_int("kern.memorystatus_vm_pressure_level") or Pressure.NORMAL


class PressureWatch:
    """Has pools shrink. Event loop only, but for `level`."""

    def __init__(
        self,
        engine: EngineThread,
        loaded: Callable[[], Sequence[LoadedModel]],
        read: Callable[[], int] = pressure_level,
    ) -> None:
        self.level = Pressure.NORMAL
        self._engine = engine
        self._loaded = loaded
        self._read = read

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        models = self._loaded()
        level = Pressure.of(self._read()) if models else Pressure.NORMAL
        before, self.level = self.level, level
        if level is not before:
            severity = logging.INFO if level is Pressure.NORMAL else logging.WARNING
            logs.event(log, "memory pressure", severity, state=level.name.lower())
        if level is Pressure.NORMAL:
            return
        if level is not before or all(model.memory.admission.idle for model in models):  # steps would fill it again
            with suppress(Unavailable):
                self._engine.submit(mx.clear_cache)
        for model in models:
            model.memory.admission.growth.yield_to(level, model.memory.sizes.pool_bytes(model.geometry))
