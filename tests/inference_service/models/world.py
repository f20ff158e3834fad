"""Models that come and go without a worker around them: real engine, real loads; what they tell is remembered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentmem.kv.hints import TurnHints
from agentmem.process.models import RegisteredModel
from inference_service.engine.thread import EngineThread
from inference_service.models.kv_setup import Share, nothing_shared
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.models.serving import Models
from inference_service.models.slots import State
from inference_service.settings import WorkerSettings


@dataclass
class Events:
    told: list[tuple[str, str]] = field(default_factory=list)

    def arrived(self, model: LoadedModel, seconds: float) -> None:
        self.told.append(("arrived", model.model_id))

    async def leaving(self, model: LoadedModel, seconds: float) -> None:
        self.told.append(("leaving", model.model_id))

    def left(self, model: LoadedModel, reason: str) -> None:
        self.told.append((reason, model.model_id))

    def registered(self, model_id: str) -> None:
        self.told.append(("registered", model_id))

    def failed(self, model_id: str) -> None:
        self.told.append(("failed", model_id))


@dataclass
class World:
    models: Models
    events: Events
    engine: EngineThread
    loader: Loader
    hints: TurnHints

    @property
    def all_loaded(self) -> list[LoadedModel]:
        return [slot.loaded for slot in self.models.slots.values() if slot.loaded is not None]

    def state(self, model_id: str) -> "State.ValueType":
        return self.models.slots[model_id].state

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.002)

    async def once(self, model_id: str) -> str:
        async with self.models.use(model_id) as model:
            return model.model_id


@asynccontextmanager
async def serving(
    sources: dict[str, str],
    data: Path,
    *,
    wait: float = 120.0,
    residency: float = 0.0,
    models: int = 1,
    options: dict[str, dict[str, Any]] | None = None,
    start: bool = True,
    settings: dict[str, Any] | None = None,
    share: Share = nothing_shared,
) -> AsyncIterator[World]:
    engine, events, hints = EngineThread(), Events(), TurnHints()
    engine.start()
    given = {"quality_check": False} | (settings or {})
    loader = Loader(engine, WorkerSettings(data=data, loaded_models=models, **given), hints, share)
    registered = {
        name: RegisteredModel(name, source, **(options or {}).get(name, {})) for name, source in sources.items()
    }
    served = Models(registered, engine, loader, events, swap_wait=wait, min_residency=residency)
    try:
        if start:
            await served.start()
        yield World(served, events, engine, loader, hints)
    finally:
        await served.stop()
        await engine.stop(10)
