"""The memory of models: given back at once, by those that leave and by the pools of those that stay."""

import gc
import threading
import time
import weakref
from pathlib import Path

import mlx.core as mx
import pytest

from inference_service.models import swapping
from inference_service.pool import growing
from inference_service.pool.kv import Closed, Space
from tests.inference_service.loop import settle
from tests.inference_service.models.world import serving


@pytest.mark.slow
async def test_what_leaves_or_fails_is_out_of_memory_without_a_collection(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(directories, data) as world:
        for name in "ba":
            await world.once(name)
        await world.engine.call(gc.collect)  # what earlier tests left
        before = await world.engine.call(mx.get_active_memory)
        gc.disable()
        try:
            model = world.models.loaded("a")
            assert model is not None
            gone = weakref.ref(model)
            del model
            await world.once("b")
            await world.until(lambda: world.models.loaded("b") is not None)
            assert gone() is None
        finally:
            gc.enable()
        assert await world.engine.call(mx.get_active_memory) == before


async def test_the_engine_has_the_pool_give_back_its_memory_at_once(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own thread, while the event loop answers; and what is closed at admission is given back in turn."""
    monkeypatch.setattr(growing, "_LEAST_BYTES", 1)
    async with serving(directories, data) as world:
        model = world.models.loaded("a")
        assert model is not None
        pool, arenas = model.memory.pool.full, model.arenas
        first = await world.engine.call(lambda: arenas.nbytes)

        async def taken() -> int:
            """Open a segment, and take it, as a sequence does."""
            pool.open()
            await world.engine.call(lambda: arenas.full.take([pool.segment.blocks]))
            return await world.engine.call(lambda: arenas.nbytes)

        assert await taken() > first
        assert await world.engine.call(lambda: model.engine.headroom.relieve(1) or arenas.nbytes) == first
        assert pool.closed == 15
        assert await taken() > first
        growth, passed = model.memory.admission.growth, threading.Event()
        world.engine.submit(passed.wait)
        assert growth.shrink(1) > 0
        growth.grow(Space(pool.capacity), 1 << 40)
        assert pool.closed == 0 and pool.opened == 15 * pool.segment.blocks, "not opened while its memory is to be lost"
        passed.set()
        assert await world.engine.call(lambda: arenas.nbytes) == first
        assert pool.closed == 1


async def test_what_a_slow_event_loop_closes_is_given_back_all_the_same(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments stayed in memory that were closed when the engine had given up waiting. Without an answer it goes on."""
    monkeypatch.setattr(growing, "_LEAST_BYTES", 1)
    monkeypatch.setattr(swapping, "_RELIEVE_SECONDS", 0.05)
    async with serving(directories, data) as world:
        model = world.models.loaded("a")
        assert model is not None
        pool, arenas, give_up = model.memory.pool.full, model.arenas, growing.PoolGrowth.give_up
        first = await world.engine.call(lambda: arenas.nbytes)
        pool.open()
        await world.engine.call(lambda: arenas.full.take([pool.segment.blocks]))

        def slowly(growth: growing.PoolGrowth, nbytes: int) -> Closed:
            time.sleep(0.2)
            return give_up(growth, nbytes)

        relieving = world.engine.submit(lambda: model.engine.headroom.relieve(1))
        relieving.result(60)  # The loop does not answer.
        await settle()
        assert pool.closed == 14, "what nobody waits for is not done later"
        monkeypatch.setattr(growing.PoolGrowth, "give_up", slowly)
        assert await world.engine.call(lambda: model.engine.headroom.relieve(1) or arenas.nbytes) == first
        assert pool.closed == 15
