"""The system's memory pressure as macOS says it, by a fake of sysctl, over the real engine and pool."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest

from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.models import pressure
from inference_service.models.pressure import PressureWatch, pressure_level
from inference_service.models.swapping import Swapper
from inference_service.pool import admission, growing
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.growing import Pressure
from tests.inference_service.loop import settle
from tests.inference_service.turns.world import TOLERANCE, Answer, Worker, answer, difference, prompt, working


class Kernel:
    """Answers of sysctl; 0 is a failure."""

    def __init__(self) -> None:
        self.level, self.asked = 1, list[str]()

    def sysctl_int(self, name: str) -> int | None:
        self.asked.append(name)
        return self.level or None


@asynccontextmanager
async def watched(llama: Path, tmp_path: Path) -> AsyncIterator[tuple[Worker, PressureWatch, Kernel]]:
    kernel = Kernel()
    async with working(llama, tmp_path, blocks=16, segment_blocks=1) as worker:
        watch = PressureWatch(worker.engine, lambda: [worker.model], lambda: kernel.level)
        memory = worker.model.memory.admission
        swapper = cast(Any, SimpleNamespace(_engine=worker.engine))
        memory.growth.closed = partial(Swapper._give_back, swapper, worker.model.arenas, memory.growth)
        memory.pressure = lambda: watch.level
        yield worker, watch, kernel


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_LEAST_BYTES", 1)
    monkeypatch.setattr(admission, "_LOOK_SECONDS", 0.01)


def tiers(found: Answer) -> set["types_pb2.Tier.ValueType"]:
    return {each.tier for each in found.started.cache.cached if each.tokens}


def test_level_is_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(pressure, "sysctl_int", kernel.sysctl_int)
    for kernel.level in (1, 2, 4):
        assert pressure_level() == kernel.level
    kernel.level = 0
    assert pressure_level() == 1
    assert set(kernel.asked) == {"kern.memorystatus_vm_pressure_level"}


async def test_cache_of_mlx_is_cleared_when_pressure_comes_and_between_turns(llama: Path, tmp_path: Path) -> None:
    async with watched(llama, tmp_path) as (worker, watch, kernel):

        async def cached() -> int:
            await worker.engine.call(lambda: mx.eval(mx.zeros(1 << 20)))
            watch.look()
            return await worker.engine.call(mx.get_cache_memory)

        assert await cached() > 0
        kernel.level = 2
        memory = worker.model.memory.admission
        room = await memory.reserve(MemoryRequest(AgentKey("n", "a", "m"), (), 1), 0)
        assert await cached() == 0
        assert await cached() > 0, "steps would fill it again"
        memory.release(room)
        assert await cached() == 0


async def test_idle_agents_leave_memory_and_turns_go_on(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with watched(llama, tmp_path) as (worker, watch, kernel):
        hot, pool, arenas = worker.model.memory.hot, worker.model.memory.pool, worker.model.arenas
        said = {name: prompt(300 if number else 200, number) for number, name in enumerate("xabc")}
        for name, ids in said.items():
            said[name] = [*ids, *(await worker.turn(name, ids)).token_ids]
        await worker.idle()
        watch.look()
        assert (len(hot), watch.level) == (4, Pressure.NORMAL)
        before = await worker.engine.call(lambda: arenas.nbytes)
        turn, ids = worker.start("d", prompt(100, 9), 30), prompt(100, 9)
        events = turn.events()
        async for event in events:
            if event.HasField("delta"):
                break
        kernel.level = 2
        watch.look()
        assert [key.agent_id for key in hot] == ["x", "b", "c"], "x is in the first segment, which stays"
        watch.look()
        assert [key.agent_id for key in hot] == ["x", "c"], "and more while it lasts"
        found = Answer(token_ids=[*event.delta.token_ids], logprobs=[each.logprob for each in event.delta.logprobs])
        async for event in events:
            found.token_ids += event.delta.token_ids
            found.logprobs += [each.logprob for each in event.delta.logprobs]
        assert len(found.token_ids) == 30 and difference(llama, ids, found) < TOLERANCE
        await worker.idle()
        assert await worker.engine.call(lambda: arenas.nbytes) < before

        again = await worker.turn("a", [*said["a"], 7])
        assert types_pb2.TIER_WARM in tiers(again), "its files are on disk"
        assert difference(llama, [*said["a"], 7], again) < TOLERANCE

        kernel.level = 4
        watch.look()
        long = worker.start("e", prompt(1300, 11))
        async with asyncio.timeout(60):
            while not worker.model.memory.admission.waiting:
                await asyncio.sleep(0.001)
        await settle()
        assert worker.model.memory.admission.waiting == 1
        closed, kernel.level = pool.full.closed, 1
        watch.look()
        assert len((await answer(long)).token_ids) == 4, "the pool grows again"
        await worker.idle()
        assert pool.full.closed < closed
    lines = [record for record in caplog.records if record.getMessage() == "memory pressure"]
    assert [record.levelno for record in lines] == [logging.WARNING, logging.WARNING, logging.INFO]
