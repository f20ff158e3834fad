"""Swaps at their worst moments: somebody leaves, something fails, or the worker ends, in the middle of one."""

import asyncio
import gc
import threading
import time
import weakref
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import AgentmemError, FailedPrecondition, Unavailable
from agentmem.load_stages import LoadStage
from inference_service import heap
from inference_service.models import finding as loader_module
from inference_service.models import swapping
from inference_service.models.loading import Loader
from inference_service.models.slots import ModelSlot, Progress, State
from tests.inference_service.models.world import World, serving
from tests.tiny_models import write_llama


@pytest.mark.slow
async def test_a_place_that_becomes_free_is_taken_at_once(directories: dict[str, str], data: Path) -> None:
    """Nobody waits for the minimum of a model that is gone."""
    async with serving(directories, data, residency=300) as world:
        b = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.models.slots["b"].opened is not None)
        await world.models.unload("a")
        async with asyncio.timeout(60):
            assert await b == "b"


async def test_garbage_among_what_is_frozen_goes_when_a_model_goes(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's process freezes its heap, so that no full collection comes in the middle of turns."""

    class Knot:
        def __init__(self) -> None:
            self.itself = self

    monkeypatch.setattr(heap, "_kept", False)
    async with serving(directories, data) as world:
        gone = weakref.ref(Knot())
        heap.keep()
        gc.collect()
        assert gone() is not None
        await world.models.unload("a")
        assert gone() is None
        assert gc.get_freeze_count() > 0, "what stays is frozen again"


@pytest.mark.slow
async def test_an_idle_model_that_is_used_again_before_it_leaves_stays(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time was over when something else was being moved, and is not when that is done."""
    looks: list[bool] = []
    idle_too_long = ModelSlot.idle_too_long.fget

    def look(slot: ModelSlot) -> bool:
        over = bool(idle_too_long(slot))
        if slot.model_id == "a":
            looks.append(over)
        return over

    monkeypatch.setattr(ModelSlot, "idle_too_long", property(look))
    monkeypatch.setattr(swapping, "_LOOK_SECONDS", 0.01)
    async with serving(directories, data, models=2, options={"a": {"ttl": 300}}) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("b"))
        moving = asyncio.create_task(world.models.unload("b"))
        await world.until(lambda: world.state("b") == State.MODEL_STATE_DRAINING)
        world.models.slots["a"].last_used -= 301
        await world.until(lambda: looks[-1:] == [True])
        before = len(looks)
        await world.once("a")
        await running.aclose()
        await moving
        await world.until(lambda: len(looks) > before)
        assert world.state("a") == State.MODEL_STATE_LOADED
        assert ("ttl", "a") not in world.events.told


async def test_a_model_that_comes_at_the_last_moment_is_entered(directories: dict[str, str], data: Path) -> None:
    """The time is over in the same step of the loop in which the model comes."""
    async with serving(directories, data, wait=0.2) as world:
        slot, a = world.models.slots["b"], world.models.loaded("a")

        def comes() -> None:
            assert a is not None
            slot.serve(a)

        waiting = asyncio.create_task(world.once("b"))
        await asyncio.sleep(0)
        time.sleep(0.21)  # noqa: ASYNC251 - nothing runs meanwhile, so the loop finds the time over in the step that begins now.
        asyncio.get_running_loop().call_soon(comes)
        assert await waiting == "a", "it stands in for b"
        assert (slot.users, slot.wanted, slot.waiters) == (0, False, [])
        slot.loaded, slot.state = None, State.MODEL_STATE_LOADING


async def test_a_load_of_what_comes_meanwhile_ends(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world:
        slot, a = world.models.slots["b"], world.models.loaded("a")
        stages = world.models.load("b")
        await anext(stages)
        slot.loaded, slot.state = a, State.MODEL_STATE_LOADED  # before the load has asked for it
        async with asyncio.timeout(60):
            assert [stage async for stage in stages] == []
        assert slot.users == 0
        slot.loaded, slot.state = None, State.MODEL_STATE_REGISTERED


async def test_a_watcher_that_leaves_leaves_nothing_behind(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        before = asyncio.all_tasks()

        async def watch() -> None:
            async for _ in world.models.load("b"):
                pass

        watching = asyncio.create_task(watch())
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        watching.cancel()
        await asyncio.wait([watching])
        await world.until(lambda: world.state("b") == State.MODEL_STATE_REGISTERED)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before


async def test_a_slow_reader_of_a_load_gets_its_latest_progress_and_nothing_queues(
    directories: dict[str, str], data: Path
) -> None:
    async with serving(directories, data) as world:
        slot, loading = world.models.slots["b"], asyncio.get_running_loop().create_future()
        steps = slot.follow(loading)
        assert await anext(steps) == Progress(), "what is so already comes at once"
        for done in range(10_000):
            slot.report(LoadStage.FETCH, done / 10_000)
        assert await anext(steps) == Progress(LoadStage.FETCH, 0.9999)
        following = asyncio.ensure_future(anext(steps, None))
        await asyncio.sleep(0)
        assert not following.done(), "there was nothing in between"
        loading.set_result(None)
        assert await following is None


@pytest.mark.parametrize("fault", ["leaving", "engine"])
async def test_a_model_that_cannot_leave_in_order_leaves_nobody_waiting(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        asked = [asyncio.create_task(world.once("b"))]
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        asked.append(asyncio.create_task(world.once("a")))
        await asyncio.sleep(0)

        async def leaving(*_: object) -> None:
            if fault == "engine":
                with suppress(Unavailable):
                    await world.engine.call(_exit)
            monkeypatch.undo()
            raise RuntimeError("injected")

        monkeypatch.setattr(world.events, "leaving", leaving)
        await running.aclose()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[0], AgentmemError)
        assert world.state("a") != State.MODEL_STATE_DRAINING
        if fault == "engine":
            assert isinstance(answers[1], Unavailable)
        else:
            assert answers[1] == "a"
            assert await world.once("b") == "b"
            assert len(world.all_loaded) == 1


def _exit() -> None:
    raise SystemExit("injected")


async def test_an_idle_model_that_cannot_leave_in_order_keeps_no_other_from_leaving(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(swapping, "_LOOK_SECONDS", 0.01)
    async with serving(directories, data, models=2, options={name: {"ttl": 0.2} for name in "ab"}) as world:
        leaving = world.events.leaving

        async def fail(*_: object) -> None:
            monkeypatch.setattr(world.events, "leaving", leaving)
            raise RuntimeError("injected")

        monkeypatch.setattr(world.events, "leaving", fail)
        async with world.models.use("b"):
            await world.until(lambda: world.models.loaded("a") is None)
        await world.until(lambda: world.models.loaded("b") is None)
    assert "model a, which was idle for too long, did not leave in order" in caplog.text


@pytest.mark.slow
async def test_a_failed_load_brings_nobody_back_whose_place_others_want(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        _fail_loads(monkeypatch, "b")
        b = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.models.slots["b"].opened is not None)  # Who is opened first goes first.
        c = asyncio.create_task(world.once("c"))
        await world.until(lambda: world.models.slots["c"].opened is not None)
        await running.aclose()
        with pytest.raises(FailedPrecondition):
            await b
        assert await c == "c"
        await asyncio.sleep(0.3)
        assert world.models.loaded("c") is not None, "nobody asked for a"
        arrived = [name for what, name in world.events.told if what == "arrived"]
        assert arrived == ["a", "c"]


def _fail_loads(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    load = Loader.load

    async def fails(self: Loader, opened: Any, *rest: Any, **named: Any) -> Any:
        if opened.info.model_id == failing:
            raise FailedPrecondition("injected")
        return await load(self, opened, *rest, **named)

    monkeypatch.setattr(Loader, "load", fails)


async def test_a_stop_in_the_middle_of_a_load_begins_nothing_new(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    async with serving(directories, data) as world:
        loading = asyncio.Event()

        async def never(*_: object, **_named: object) -> None:
            loading.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Loader, "load", never)
        b = asyncio.create_task(world.once("b"))
        await loading.wait()
        await world.models.stop()
        with pytest.raises(Unavailable, match="shutting down"):
            await b
        assert asyncio.all_tasks() == before
        for ask in (world.once("a"), anext(aiter(_stages(world)))):
            with pytest.raises(Unavailable, match="shutting down"):
                await ask
        assert asyncio.all_tasks() == before


async def _stages(world: World) -> Any:
    async for stage in world.models.load("c"):
        if stage is None:
            yield stage
    yield None


async def test_a_stop_does_not_wait_for_what_a_leaving_model_writes(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(directories, data) as world:
        written = asyncio.Event()

        async def leaving(*_: object) -> None:
            await written.wait()

        monkeypatch.setattr(world.events, "leaving", leaving)
        b = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        async with asyncio.timeout(60):
            await world.models.stop()
        assert isinstance((await asyncio.gather(b, return_exceptions=True))[0], Unavailable)
        written.set()


async def test_a_stop_ends_a_download(directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()

    def endless(source: str, *, offline: bool, progress: Any) -> Path:
        try:
            while True:
                progress(0.5)
                began.set()
                threading.Event().wait(0.01)
        finally:
            ended.set()

    async with serving({**directories, "hub": "owner/name"}, data) as world:
        monkeypatch.setattr(loader_module, "fetch_description", lambda _source: None)
        monkeypatch.setattr(loader_module, "fetch", endless)
        hub = asyncio.create_task(world.once("hub"))
        assert await asyncio.to_thread(began.wait, 60)
        await world.models.stop()
        assert await asyncio.to_thread(ended.wait, 60)
        assert isinstance((await asyncio.gather(hub, return_exceptions=True))[0], Unavailable)


async def test_downloads_take_no_threads_from_turns(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns plan and hash on the loop's threads; more downloads than there are of those must not hold them up."""
    done, fetch = threading.Event(), loader_module.fetch

    def slow(source: str, *, offline: bool, progress: Any) -> Path:
        if source.startswith("owner/"):
            done.wait(60)
            raise FailedPrecondition("injected")
        return fetch(source, offline=offline, progress=progress)

    hubs = {f"hub-{n}": f"owner/{n}" for n in range(40)}
    async with serving({**directories, **hubs}, data) as world:
        monkeypatch.setattr(loader_module, "fetch_description", lambda _source: None)
        monkeypatch.setattr(loader_module, "fetch", slow)
        asked = [asyncio.create_task(world.once(name)) for name in hubs]
        await asyncio.sleep(0.1)
        try:
            async with asyncio.timeout(60):
                assert await world.once("b") == "b", "and others swap meanwhile"
        finally:
            done.set()
            await asyncio.wait(asked)
        assert all(isinstance(task.exception(), FailedPrecondition) for task in asked)


async def test_a_file_that_vanishes_is_the_models_fault(
    directories: dict[str, str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = write_llama(tmp_path / "m", seed=5)
    async with serving({"a": directories["a"], "b": str(gone)}, data) as world:
        model_fingerprint = loader_module.model_fingerprint

        def after_it_has_gone(*arguments: Any) -> str:
            (gone / "model.safetensors").unlink(missing_ok=True)
            return model_fingerprint(*arguments)

        monkeypatch.setattr(loader_module, "model_fingerprint", after_it_has_gone)
        with pytest.raises(FailedPrecondition, match="cannot be read"):
            await world.once("b")
        assert await world.once("a") == "a"
