"""A Mac's GPU is kept warm between turns: a fake device, and a clock that stands until the test lets a second pass."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from prometheus_client import CollectorRegistry

from agentmem.validation import AgentKey
from inference_service.engine.device import working_set
from inference_service.engine.thread import EngineThread
from inference_service.settings import WorkerSettings
from inference_service.turns import keeping_warm
from inference_service.turns.keeping_warm import KeepWarm
from inference_service.worker import Worker as Service
from tests.inference_service.turns.world import answer, prompt, working


class Clock:
    def __init__(self) -> None:
        self.time = 100.0
        self._seconds = asyncio.Semaphore(0)
        self._begun = self._ended = 0

    async def pause(self, seconds: float) -> None:
        self._begun += 1
        await self._seconds.acquire()
        self._ended += 1
        self.time += seconds

    async def second(self, warm: KeepWarm) -> None:
        """Let a second pass, and all be done that it begins."""
        assert warm._task is not None
        over = self._ended + 1
        self._seconds.release()
        async with asyncio.timeout(60):
            while self._begun <= over and not warm._task.done():
                await asyncio.sleep(0.001)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ticks, which are computed, on a fake Mac."""
    found, tick = list[int](), keeping_warm._tick

    def counted() -> None:
        tick()
        found.append(len(found))

    monkeypatch.setattr(keeping_warm, "_tick", counted)
    monkeypatch.setattr(keeping_warm, "working_set", lambda: 1 << 34)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)
    return found


async def test_ticks_come_after_a_turn_and_not_beside_one(ticks: list[int], llama: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with working(llama, tmp_path) as worker:
        runner = worker.runner
        warm = KeepWarm(worker.engine, 4, lambda: runner.busy, pause=clock.pause, now=lambda: clock.time)
        runner.turn_ended = warm.turn_ended
        assert warm._task is None
        await worker.turn("a", prompt(20))
        await worker.at_rest()
        await clock.second(warm)
        await clock.second(warm)
        assert len(ticks) == 2
        async with worker.locks.hold(AgentKey("n", "a", "m")):
            waiting = worker.start("a", prompt(20))
            await clock.second(warm)
            assert len(ticks) == 2, "a turn waits"
        await answer(waiting)
        await worker.at_rest()
        for _ in range(4):
            assert warm._task is not None and not warm._task.done()
            await clock.second(warm)
        assert warm._task.done() and len(ticks) == 6, "four seconds after the last turn"
        await worker.turn("a", prompt(20))
        await worker.at_rest()
        await clock.second(warm)
        assert len(ticks) == 7, "it begins again"
        warm.stop()


async def test_nothing_is_computed_before_what_the_engine_was_asked(ticks: list[int]) -> None:
    clock, engine, passed = Clock(), EngineThread(), threading.Event()
    engine.start()
    for _ in range(2):
        engine.submit(passed.wait)
    warm = KeepWarm(engine, 3, lambda: False, pause=clock.pause, now=lambda: clock.time)
    warm.turn_ended()
    await clock.second(warm)
    passed.set()
    await engine.stop(10)
    assert ticks == []
    warm.stop()


@pytest.mark.parametrize(("plugged", "computes"), [(True, True), (False, False), (None, True)])
async def test_battery_is_looked_at_once_a_minute(
    plugged: bool | None, computes: bool, ticks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []

    def battery() -> SimpleNamespace:
        looks.append(True)
        return SimpleNamespace(power_plugged=plugged)

    monkeypatch.setattr(psutil, "sensors_battery", battery)
    clock, engine = Clock(), EngineThread()
    engine.start()
    warm = KeepWarm(engine, 600, lambda: False, pause=clock.pause, now=lambda: clock.time)
    warm.turn_ended()
    for _ in range(61):
        await clock.second(warm)
    assert (len(looks), len(ticks)) == (2, 61 * computes)
    warm.stop()
    await engine.stop(10)


async def test_engine_that_ended_ends_it(ticks: list[int]) -> None:
    clock, engine = Clock(), EngineThread()
    warm = KeepWarm(engine, 600, lambda: False, pause=clock.pause, now=lambda: clock.time)
    warm.turn_ended()
    await clock.second(warm)
    assert warm._task is not None and warm._task.done() and warm._task.exception() is None


@pytest.mark.skipif(working_set() is not None, reason="this is a Mac")
async def test_without_metal_nothing_begins() -> None:
    warm = KeepWarm(EngineThread(), 60, lambda: False)
    warm.turn_ended()
    assert warm._task is None


async def test_worker_has_it_by_its_setting(ticks: list[int], tmp_path: Path) -> None:
    for seconds in (7.0, 0.0):
        settings = WorkerSettings(data=tmp_path, run_dir=tmp_path, keep_warm=seconds)
        worker = Service(settings, CollectorRegistry())
        worker._runner.turn_ended()
        assert worker._keep_warm._seconds == seconds
        assert (worker._keep_warm._task is not None) == bool(seconds)
        worker._keep_warm.stop()
