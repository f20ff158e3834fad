"""Memory that macOS keeps resident for models, with a fake of MLX's function that refuses as MLX does."""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from prometheus_client import CollectorRegistry

from agentmem.process.checkup import Finding, State, findings
from agentmem.process.settings import SettingsError, load
from inference_service.doctor import checks
from inference_service.engine import device
from inference_service.engine.computing import MeasuredCost
from inference_service.models import loaded as loaded_models
from inference_service.models import loading, measuring, wiring
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.models.serving import Models
from inference_service.models.wiring import Wiring, check_wired, wired_limit
from inference_service.settings import Wired, WorkerSettings
from inference_service.worker import Worker
from tests.inference_service.models.world import serving

MIB, GIB = 1 << 20, 1 << 30


@dataclass
class Metal:
    """A Mac of 32 GiB; `calls` are limits with the bytes that were in use, and in MLX's cache, then."""

    working_set: int = 21 * GIB
    refuses: str = ""
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    synchronized: int = 0

    def set_wired_limit(self, limit: int) -> int:
        assert self.synchronized > len(self.calls), "a pass may run"
        if self.refuses:
            raise RuntimeError(self.refuses)
        if limit > self.working_set:
            raise ValueError("[metal::set_wired_limit] larger than the maximum working set size")
        before = self.limits[-1] if self.calls else 0
        self.calls.append((limit, int(mx.get_active_memory()), int(mx.get_cache_memory())))
        return before

    @property
    def limits(self) -> list[int]:
        return [limit for limit, *_ in self.calls]


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Metal:
    found, synchronize = Metal(), mx.synchronize

    def synchronized() -> None:
        found.synchronized += 1
        synchronize()

    for module in (device, wiring):
        monkeypatch.setattr(module, "working_set", lambda: found.working_set)
    monkeypatch.setattr(wiring, "device_bytes", lambda: 32 * GIB)
    monkeypatch.setattr(mx, "set_wired_limit", found.set_wired_limit)
    monkeypatch.setattr(mx, "synchronize", synchronized)
    return found


def whole(nbytes: int) -> int:
    return nbytes // MIB * MIB


@pytest.mark.parametrize(
    ("setting", "wanted", "working_set", "total", "limit"),
    [
        ("auto", 3 * GIB + 5, 21 * GIB, 32 * GIB, 3 * GIB),
        ("auto", 30 * GIB, 21 * GIB, 32 * GIB, whole(int(0.9 * 21 * GIB))),
        ("auto", 30 * GIB, 24 * GIB, 32 * GIB, whole(32 * GIB - int(0.35 * 32 * GIB))),
        ("auto", 15 * GIB, 12 * GIB, 16 * GIB, 8 * GIB),
        ("auto", 5 * GIB, 5 * GIB, 8 * GIB, 0),
        ("auto", 5 * GIB, 3 * GIB, 4 * GIB, 0),
        ("auto", 0, 21 * GIB, 32 * GIB, 0),
        ("off", 3 * GIB, 21 * GIB, 32 * GIB, 0),
        (20 * GIB + 1, 3 * GIB, 21 * GIB, 32 * GIB, 20 * GIB),
        (20 * GIB, 0, 21 * GIB, 32 * GIB, 0),
    ],
)
def test_limit(setting: Wired, wanted: int, working_set: int, total: int, limit: int) -> None:
    assert wired_limit(setting, wanted, int(0.9 * working_set), total) == limit


async def test_limit_is_raised_before_memory_is_taken_and_lowered_once_it_is_free(
    metal: Metal, directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, int] = {}
    read, take = loaded_models.read_weights, loaded_models.take_memory

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*of: Any) -> Any:
            limits[name] = metal.limits[-1]
            return function(*of)

        return note

    monkeypatch.setattr(loading, "read_weights", noted("read", read))
    monkeypatch.setattr(loading, "take_memory", noted("take", take))
    monkeypatch.setattr(Loader, "_cost", lambda *_, **__: MeasuredCost(MIB))
    async with serving({"a": directories["a"], "b": directories["b"]}, data, models=2) as world:
        model = world.models.loaded("a")
        assert model is not None
        wanted = {"a": model.taken_bytes}
        assert limits["read"] not in (0, limits["take"]), "it was estimated"
        assert limits["take"] == metal.limits[-1] == world.loader.wiring.limit == whole(wanted["a"])
        await world.engine.call(gc.collect)  # what earlier tests left
        alone, active = metal.limits[-1], await world.engine.call(mx.get_active_memory)
        await world.once("b")
        other = world.models.loaded("b")
        assert other is not None
        wanted["b"] = other.taken_bytes
        most = whole(min(sum(wanted.values()), int(0.9 * metal.working_set)))
        assert metal.limits[-1] == most > alone
        parts = [world.loader.wiring.part(name) for name in "ab"]
        assert parts == [most * wanted[name] // sum(wanted.values()) for name in "ab"]
        del other
        await world.models.unload("b")
        assert metal.calls[-1] == (alone, active, 0), "when the other's memory is free, and before the next load"
        assert world.loader.wiring.part("b") == 0
        del model
        await world.models.unload("a")
        assert (metal.limits[-1], world.loader.wiring.limit) == (0, 0)


def test_cache_is_cleared_before_the_limit_is_lowered(metal: Metal) -> None:
    """Buffers in it are wired, too."""
    wired = Wiring("auto")
    wired.want("a", GIB)
    mx.eval(mx.zeros(MIB))
    assert mx.get_cache_memory() > 0
    wired.leave("a")
    assert metal.calls[-1][0] == metal.calls[-1][2] == 0


async def test_load_after_measuring_wants_what_it_then_takes(
    metal: Metal, directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_QUIET_SECONDS", 0.05)
    monkeypatch.setattr(measuring, "_LOOK_SECONDS", 0.01)
    settings = {"measure_first_bytes": 0, "quality_check": True, "pool_bytes": 64 * MIB}

    def is_final(models: Models) -> bool:
        return (model := models.loaded("a")) is not None and model.setup.final

    async with serving({"a": directories["a"]}, tmp_path, settings=settings) as world:
        await world.until(lambda: is_final(world.models))
        model = world.models.loaded("a")
        assert isinstance(model, LoadedModel)
        assert 0 in metal.limits[1:-1], "it was unloaded between"
        assert metal.limits[-1] == whole(model.taken_bytes)


async def test_failed_load_gives_its_part_back(
    metal: Metal, directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving({"a": directories["a"]}, data, start=False) as world:

        def fail(*_: Any) -> None:
            raise RuntimeError("the weights of a model")

        monkeypatch.setattr(loading, "check_runs", fail)
        with pytest.raises(Exception, match="the weights of a model"):
            await world.models.start()
        await world.until(lambda: not world.models._queue)
        assert len(metal.limits) == 2 and metal.limits[0] > 0 == metal.limits[1] == world.loader.wiring.limit


async def test_refusal_is_logged_once_and_fails_no_load(
    metal: Metal, directories: dict[str, str], data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metal.refuses = "not on this macOS"
    async with serving(directories, data) as world:
        await world.once("b")
        assert world.loader.wiring.limit == world.loader.wiring.part("b") == 0
    said = [record for record in caplog.records if record.getMessage() == "memory stays unwired"]
    assert [record.levelno for record in said] == [logging.WARNING]


@pytest.mark.parametrize("wired", ["off", 20 * GIB])
async def test_setting_decides(metal: Metal, wired: Wired, directories: dict[str, str], data: Path) -> None:
    async with serving({"a": directories["a"]}, data, settings={"wired": wired}):
        assert metal.limits == ([] if wired == "off" else [20 * GIB])


@pytest.mark.skipif(device.working_set() is not None, reason="this is a Mac")
async def test_nothing_is_called_without_metal(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", called.append)
    async with serving({"a": directories["a"]}, data) as world:
        assert world.loader.wiring.limit == world.loader.wiring.part("a") == 0
        await world.models.unload("a")
    assert called == []


def worker(data: Path, registry: CollectorRegistry, wired: Wired = "auto") -> Worker:
    return Worker(WorkerSettings(data=data, run_dir=data, wired=wired), registry)


async def test_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, loaders, made = CollectorRegistry(), list[Loader](), Loader.__init__

    def noted(loader: Loader, *of: Any) -> None:
        made(loader, *of)
        loaders.append(loader)

    monkeypatch.setattr(Loader, "__init__", noted)
    worker(tmp_path, registry)
    assert registry.get_sample_value("agentmem_worker_wired_limit_bytes") == 0
    loaders[0].wiring.limit = 5 * GIB
    assert registry.get_sample_value("agentmem_worker_wired_limit_bytes") == 5 * GIB


def doctors(**settings: Any) -> list[Finding]:
    check = checks(WorkerSettings(**settings)).get("wired memory", list)
    return list(findings(check))


def test_doctor(metal: Metal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "device_bytes", lambda: 32 * GIB)
    [auto], [off], [wrong] = doctors(), doctors(wired="off"), doctors(wired=30 * GIB)
    assert (auto.state, auto.advice) == (State.OK, "")
    assert auto.facts["wired_bytes"] == whole(int(0.9 * metal.working_set))
    assert (off.state, off.advice, off.facts["wired_bytes"]) == (State.OK, "", 0)
    assert wrong.state is State.PROBLEM and "iogpu.wired_limit_mb" in wrong.advice
    monkeypatch.setattr(device, "device_bytes", lambda: 8 * GIB)
    [small] = doctors()
    assert (small.state, small.facts["wired_bytes"]) == (State.OK, 0) and "WIRED=BYTES" in small.advice
    monkeypatch.setattr(device, "working_set", lambda: None)
    assert doctors() == [], "without Metal there is no such line"


async def test_more_than_metal_recommends_is_refused_in_words(metal: Metal, tmp_path: Path) -> None:
    check_wired(metal.working_set)
    check_wired("auto")
    with pytest.raises(SettingsError, match=r"sudo sysctl iogpu\.wired_limit_mb=21505"):
        worker(tmp_path, CollectorRegistry(), metal.working_set + 1)


def test_what_is_no_number_of_bytes() -> None:
    for wrong in ("12 GB", "-1", "1.5", "always"):
        with pytest.raises(SettingsError, match=r"wired: .* is neither auto nor off nor a number of bytes"):
            load(WorkerSettings, ["--wired", wrong])
