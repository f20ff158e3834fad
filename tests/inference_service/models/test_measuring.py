"""A large new model serves at once, and is measured and proved between its turns."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine.pausing import let_others_run
from inference_service.models import measuring, proof
from inference_service.models.loaded import LoadedModel
from inference_service.models.slots import State
from tests.inference_service.models.world import World, serving

LATER = {"measure_first_bytes": 0, "quality_check": True}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_QUIET_SECONDS", 0.05)
    monkeypatch.setattr(measuring, "_LOOK_SECONDS", 0.01)


async def measured(world: World, model_id: str = "a") -> LoadedModel:
    await world.until(lambda: (model := world.models.loaded(model_id)) is not None and model.setup.final)
    model = world.models.loaded(model_id)
    assert model is not None
    return model


def of(model: LoadedModel) -> tuple[Any, ...]:
    network = model.engine.model
    return str(model.geometry.format), model.fingerprint, model.setup, network.rows_together, network.rides, model.paths


@pytest.mark.usefixtures("by_openblas")
async def test_it_serves_carefully_and_then_as_one_that_was_measured_first(
    directories: dict[str, str], tmp_path: Path
) -> None:
    source = {"a": directories["a"]}
    async with serving(source, tmp_path / "first", settings={"quality_check": True}) as world:
        first = of(await measured(world))
        assert world.events.told == [("arrived", "a")]
    async with serving(source, tmp_path / "later", settings=LATER) as world:
        async with world.models.use("a") as unmeasured:
            assert (str(unmeasured.geometry.format), unmeasured.calibration, unmeasured.quality) == ("8", None, None)
            assert unmeasured.geometry.format.scheme == "rotated", "its bases are not known yet"
            assert "until the model is measured" in unmeasured.setup.reason
            assert not unmeasured.engine.model.rows_together and not unmeasured.engine.model.rides
            assert unmeasured.fingerprint != first[1], "its KV is another's"
        later = of(await measured(world))
        assert later[:2] == first[:2] and later[3:] == first[3:]
        assert later[2].calibration == first[2].calibration and later[2].quality == first[2].quality
        assert world.events.told == [*(("arrived", "a"), ("leaving", "a"), ("measured", "a")), ("arrived", "a")]
    async with serving(source, tmp_path / "later", settings=LATER) as world:
        again = of(await measured(world))
        assert again[:2] == later[:2] and again[3:5] == later[3:5]
        assert world.events.told == [("arrived", "a")], "the next start knows it"


async def test_bits_that_were_set_are_taken_when_it_is_measured(directories: dict[str, str], tmp_path: Path) -> None:
    options = {"a": {"kv_bits": "5/4"}}
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER, options=options) as world:
        async with world.models.use("a") as unmeasured:
            assert (str(unmeasured.geometry.format), unmeasured.setup.final) == ("8", False)
        assert str((await measured(world)).geometry.format) == "5/4"


async def test_it_waits_for_turns_and_the_load_for_a_moment_without(
    directories: dict[str, str], tmp_path: Path
) -> None:
    """A turn that runs when a piece of measuring ends has the engine until it ends."""
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world, AsyncExitStack() as turn:
        began, left = asyncio.Event(), [300_000]  # more than there are pauses
        measure = world.loader.measure

        async def watched(*of: Any) -> None:
            await turn.enter_async_context(world.models.use("a"))
            world.engine.attach(step)
            began.set()
            await measure(*of)
            done.append(left[0])

        def step() -> bool:
            left[0] = max(0, left[0] - 1)
            return left[0] > 0

        done: list[int] = []
        world.loader.measure = watched  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            await began.wait()
        await world.until(lambda: bool(done))
        assert done == [0], "the turn's steps came first"
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert world.models.loaded("a") is not None and world.state("a") == State.MODEL_STATE_LOADED
        assert not world.models.slots["a"].loaded.setup.final, "its turn has not ended"  # type: ignore[union-attr]
        await turn.aclose()
        assert (await measured(world)).setup.final


async def test_ways_that_are_proved_are_not_taken_before_the_load(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are proved for the kernels and the format that it takes."""
    original, serving_ways = proof.riding_problem, list[tuple[bool, bool]]()

    def riding_problem(*of: Any) -> str:
        slot = world.models.slots["a"]
        assert slot.loaded is not None
        network = slot.loaded.engine.model
        serving_ways.append((network.rows_together, network.rides))
        return original(*of)

    monkeypatch.setattr(proof, "riding_problem", riding_problem)
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
        network = (await measured(world)).engine.model
        assert serving_ways == [(False, False)]
        assert network.rows_together and network.rides


@pytest.mark.parametrize("models", [1, 2])
async def test_another_models_load_calls_it_off(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: int
) -> None:
    """It is measured later if it is still, or again, loaded; its weights go with it if it is not."""
    reached, original = asyncio.Event(), proof.order_problem
    loop = asyncio.get_running_loop()
    times = []

    def endless(*of: Any) -> str:
        times.append(1)
        if len(times) == 1:
            loop.call_soon_threadsafe(reached.set)
            while True:
                let_others_run()
        return original(*of)

    sources = {name: directories[name] for name in "ab"}
    async with serving({"b": sources["b"]}, tmp_path, settings={"quality_check": True}):
        pass  # b is known
    async with serving(sources, tmp_path, models=models, settings=LATER) as world:
        monkeypatch.setattr(proof, "order_problem", endless)
        async with asyncio.timeout(60):
            await reached.wait()
            assert await world.once("b") == "b"
        assert len(times) == 1 and (world.models.loaded("a") is not None) == (models == 2)
        assert await world.once("a") == "a"
        await measured(world)
        assert len(times) == 2


async def test_a_model_that_cannot_be_proved_is_refused_from_then_on(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "order_problem", lambda *_: "its tokens see later ones")
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
        assert await world.once("a") == "a"
        await world.until(lambda: world.state("a") == State.MODEL_STATE_FAILED)
        for _ in range(2):
            with pytest.raises(FailedPrecondition, match="cannot go on from what it has computed: its tokens"):
                await world.once("a")
        assert world.events.told.count(("arrived", "a")) == 1


async def test_a_model_that_fails_for_another_reason_serves_on(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is short for a while is no reason to take it from its users."""
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def failing(*_: Any) -> str:
        loop.call_soon_threadsafe(failed.set)
        raise RuntimeError("[malloc] no memory")

    monkeypatch.setattr(proof, "order_problem", failing)
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
        async with asyncio.timeout(60):
            await failed.wait()
        for _ in range(20):
            assert await world.once("a") == "a"
            await asyncio.sleep(0.01)
        assert world.events.told == [("arrived", "a")] and not world.models.slots["a"].error


async def test_a_client_that_leaves_does_not_call_the_load_of_what_was_measured_off(
    directories: dict[str, str], tmp_path: Path
) -> None:
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
        leaving, leave = world.events.leaving, asyncio.Event()

        async def slowly(model: LoadedModel, seconds: float) -> None:
            leave.set()
            await asyncio.sleep(0.2)
            await leaving(model, seconds)

        world.events.leaving = slowly  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            await leave.wait()
        client = asyncio.create_task(world.once("a"))
        await asyncio.sleep(0.05)
        client.cancel()
        await asyncio.wait([client])
        await measured(world)
        await world.until(lambda: not world.models.slots["a"].users)


async def test_a_model_that_is_called_off_again_and_again_is_measured_by_a_load(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, original, times = asyncio.Queue[int](), proof.order_problem, list[int]()
    loop = asyncio.get_running_loop()

    def endless(*of: Any) -> str:
        times.append(1)
        if len(times) <= 3:
            loop.call_soon_threadsafe(reached.put_nowait, len(times))
            while True:
                let_others_run()
        return original(*of)

    monkeypatch.setattr(proof, "order_problem", endless)
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
        for _ in range(3):
            async with asyncio.timeout(60):
                await reached.get()
            async with world.models._measuring.held():
                pass
        await world.models.unload("a")
        async with world.models.use("a") as model:
            assert model.setup.final, "no later load serves it unmeasured"


async def test_a_worker_that_ends_meanwhile_begins_again(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, loop = asyncio.Event(), asyncio.get_running_loop()

    def endless(*_: Any) -> str:
        loop.call_soon_threadsafe(reached.set)
        while True:
            let_others_run()

    with monkeypatch.context() as patched:
        patched.setattr(proof, "order_problem", endless)
        async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
            async with asyncio.timeout(60):
                await reached.wait()
        assert not world.engine.alive, "it did not wait"
    async with serving({"a": directories["a"]}, tmp_path, settings=LATER) as world:
        assert (await measured(world)).setup.final
