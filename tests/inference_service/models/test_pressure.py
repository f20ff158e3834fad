"""The system's memory pressure is looked at on macOS alone, and beside loaded models."""

import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inference_service.models import pressure, swapping
from inference_service.models.serving import Models
from inference_service.pool.growing import Pressure
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker
from tests.inference_service.models.world import serving


async def test_it_is_looked_at_on_macos_while_a_model_is_loaded(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "ON_MACOS", True)
    monkeypatch.setattr(pressure, "_LOOK_SECONDS", 0.005)
    async with serving({"a": directories["a"]}, data, start=False) as world:
        watch, looks = world.models.pressure, list[bool]()

        def read() -> int:
            looks.append(bool(world.all_loaded))
            return 2

        watch._read = read
        await world.models.start()
        await world.until(lambda: watch.level is Pressure.WARNING)
        model = world.models.loaded("a")
        assert model is not None and model.memory.admission.pressure() is Pressure.WARNING
        del model
        await world.models.unload("a")
        await world.until(lambda: watch.level is Pressure.NORMAL)
        assert all(looks)


@pytest.mark.skipif(sys.platform == "darwin", reason="it is looked at here")
async def test_elsewhere_nobody_looks(directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watches: list[Any] = []

    async def watch(itself: Any) -> None:
        watches.append(itself)

    assert not pressure.ON_MACOS
    monkeypatch.setattr(pressure.PressureWatch, "watch", watch)
    async with serving({"a": directories["a"]}, data) as world:
        await world.once("a")
        assert (watches, world.models.pressure.level) == ([], Pressure.NORMAL)


async def test_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, models, made = CollectorRegistry(), list[Models](), Models.__init__

    def noted(served: Models, *of: Any, **more: Any) -> None:
        made(served, *of, **more)
        models.append(served)

    monkeypatch.setattr(Models, "__init__", noted)
    Worker(WorkerSettings(data=tmp_path, run_dir=tmp_path), registry)
    for level in Pressure:
        models[0].pressure.level = level
        assert registry.get_sample_value("agentmem_worker_memory_pressure") == level
