"""Requests enter models, wait for them, and so make them come and go: real engine, real tiny models."""

import asyncio
import json
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.models import finding, loading
from inference_service.models.fitting import agent_bytes
from inference_service.models.loaded import LoadedModel, read_weights
from inference_service.models.loading import Loader
from inference_service.models.slots import State
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table
from tests.inference_service.models.world import World, serving
from tests.tiny_models import write_llama


@pytest.mark.slow
async def test_a_request_for_another_model_swaps(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world:
        assert await world.once("a") == "a"
        assert await world.once("b") == "b"
        assert (world.models.loaded("a"), world.state("a")) == (None, State.MODEL_STATE_REGISTERED)
        assert [model.model_id for model in world.all_loaded] == ["b"]
        assert await world.once("a") == "a"
        assert world.events.told == [
            *(("arrived", "a"), ("leaving", "a"), ("swap", "a")),
            *(("arrived", "b"), ("leaving", "b"), ("swap", "b")),
            ("arrived", "a"),
        ]


@pytest.mark.slow
async def test_hints_hold_for_models_that_come_later(directories: dict[str, str], data: Path) -> None:
    """A workflow says once who speaks when, whatever models its agents are on."""
    async with serving(directories, data) as world:
        agents = [AgentKey("n", name, "b") for name in ("soon", "later")]
        world.hints.set({agents[0]: 0, agents[1]: 3})
        async with world.models.use("b") as model:
            hot = model.memory.hot
            for key in agents:
                hot.put(key, HotState(Version("u", 1), Ledger(), Table(0, ())))
            assert list(hot) == [*reversed(agents)]
            for key in agents:
                hot.drop(key)


async def test_running_requests_end_first_and_new_ones_for_the_old_model_wait_their_turn(
    directories: dict[str, str], data: Path
) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        b = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        again = [asyncio.create_task(world.once("a")) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not b.done() and not any(task.done() for task in again)
        assert world.models.loaded("a") is not None, "somebody is still in it"
        await running.aclose()
        assert await b == "b"
        assert await asyncio.gather(*again) == ["a"] * 3
        arrived = [name for what, name in world.events.told if what == "arrived"]
        assert arrived == ["a", "b", "a"], "the three of them cost one swap"


async def test_a_model_stays_for_its_minimum(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data, residency=300) as world:
        waiting = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.models.slots["b"].opened is not None)
        await asyncio.sleep(0.05)
        assert await world.once("a") == "a", "it serves meanwhile"
        assert world.state("a") == State.MODEL_STATE_LOADED
        world.models.slots["a"].loaded_at = came = time.monotonic() - 299.8
        await world.once("a")  # who leaves has the others look again
        assert await waiting == "b"
        assert time.monotonic() - came >= 300


@pytest.mark.slow
async def test_models_are_loaded_in_the_order_in_which_they_were_asked_for(
    directories: dict[str, str], data: Path
) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        order: list[str] = []

        async def ask(name: str) -> None:
            order.append(await world.once(name))

        tasks = []
        for name in ("c", "b", "c", "d", "b"):
            tasks.append(asyncio.create_task(ask(name)))
            await world.until(lambda name=name: world.models.slots[name].opened is not None)
        await running.aclose()
        await asyncio.gather(*tasks)
        assert order == ["c", "c", "b", "b", "d"]


async def test_who_leaves_calls_the_swap_off(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        b = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        again = asyncio.create_task(world.once("a"))
        await asyncio.sleep(0)
        b.cancel()
        assert await again == "a", "it serves again"
        await world.until(lambda: world.state("b") == State.MODEL_STATE_REGISTERED)
        assert world.events.told == [("arrived", "a")]
        await running.aclose()
        assert await world.once("b") == "b", "nothing is left of the first try"


async def test_who_waits_too_long_is_told_to_come_again_and_the_model_comes(
    directories: dict[str, str], data: Path
) -> None:
    async with serving(directories, data, wait=0.3) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        loading = asyncio.create_task(_load(world, "b"))
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)  # However long it takes to open b.
        asked = asyncio.create_task(world.once("b"))
        await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(Unavailable, match=r"'b' is not loaded yet .*'a' must end its requests first") as caught:
            await asked
        assert caught.value.retry_after
        await running.aclose()
        await world.until(lambda: world.models.loaded("b") is not None)
        assert await world.once("b") == "b"


async def _load(world: World, name: str) -> None:
    async for _ in world.models.load(name):
        pass


@pytest.mark.slow
async def test_a_pinned_model_stays(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data, options={"a": {"pinned": True}}) as world:
        with pytest.raises(FailedPrecondition, match="unpin one of 'a'"):
            await world.once("b")
        assert await world.once("a") == "a"
    async with serving(directories, data, models=2, options={"a": {"pinned": True}}) as world:
        for name in "bcb":
            assert await world.once(name) == name
        assert world.models.loaded("a") is not None


async def test_an_idle_model_leaves_after_its_time(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data, options={"a": {"ttl": 0.2}}) as world:
        async with world.models.use("a"):
            await asyncio.sleep(1.5)
            assert world.models.loaded("a") is not None, "not while somebody uses it"
        await world.until(lambda: world.state("a") == State.MODEL_STATE_REGISTERED)
        assert world.events.told[-1] == ("ttl", "a")
        assert await world.once("a") == "a", "and comes back"


async def test_load_tells_its_stages_and_unload_what_it_freed(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world:
        stages = [at async for at in world.models.load("b")]
        names = list(dict.fromkeys(at.stage for at in stages))
        assert names == ["wait", "fetch", "read", "measure", "prove", "pool"]
        assert all(0 <= at.share <= 1 for at in stages)
        assert [at async for at in world.models.load("b")] == []
        b = world.models.loaded("b")
        assert b is not None
        expected = b.weight_bytes + b.arenas.nbytes
        assert await world.models.unload("b") == expected > 0
        assert await world.models.unload("b") == 0
        assert world.all_loaded == []


async def test_an_unload_that_is_called_off_leaves_the_model(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        unloading = asyncio.create_task(world.models.unload("a"))
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        unloading.cancel()
        await asyncio.wait([unloading])
        assert await world.once("a") == "a"


async def test_a_look_is_not_worth_a_swap(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world:
        with pytest.raises(FailedPrecondition, match="'b' is not loaded, and this would load none"):
            async with world.models.hold("b"):
                pass
        async with world.models.hold("a") as model:
            assert model.model_id == "a"
        info = await world.models.info("b")
        assert (info.architecture, info.geometry.layers, info.context_length) == ("llama", 2, 4096)
        assert world.models.loaded("b") is None


async def test_unknown_models_are_told_what_there_is(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world:
        for ask in (world.once, world.models.unload, world.models.info):
            with pytest.raises(NotFound, match="registered are a, b, c, d"):
                await ask("e")


def broken(kind: str, directory: Path, like: str) -> str:
    """A model that cannot be loaded, by what is wrong with it."""
    if kind == "no directory":
        return str(directory / "none")
    write_llama(directory, seed=9)
    weights = directory / "model.safetensors"
    if kind == "cut short":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif kind == "other shape":
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, "intermediate_size": 4096}))
    return str(directory)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no directory", "is not a directory"),
        ("cut short", "model.safetensors is damaged or cut short"),
        ("other shape", "cannot be loaded"),
    ],
)
async def test_what_cannot_be_loaded_leaves_the_old_model_serving(
    directories: dict[str, str], data: Path, tmp_path: Path, kind: str, said: str
) -> None:
    sources = {"a": directories["a"], "bad": broken(kind, tmp_path / "bad", directories["a"])}
    async with serving(sources, data) as world:
        async with world.models.use("a") as before:
            with pytest.raises(FailedPrecondition, match=said):
                await world.once("bad")
            assert world.models.loaded("a") is before, "nobody had to go for that"
        slot = world.models.slots["bad"]
        assert slot.state == State.MODEL_STATE_FAILED and slot.error
        assert world.events.told == [("arrived", "a"), ("failed", "bad")]
        assert await world.once("a") == "a"


@pytest.mark.slow
async def test_a_load_that_fails_midway_brings_the_old_model_back(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(directories, data) as world:
        failing: list[Exception] = [RuntimeError("[malloc] no memory"), FailedPrecondition("self-test")]
        load = Loader.load

        async def fails_once(self: Loader, opened: Any, *rest: Any, **named: Any) -> LoadedModel:
            if opened.info.model_id == "b" and failing:
                raise failing.pop()
            return await load(self, opened, *rest, **named)

        monkeypatch.setattr(Loader, "load", fails_once)
        for _ in range(2):
            with pytest.raises(Exception, match=r"self-test|RuntimeError"):
                await world.once("b")
            assert await world.once("a") == "a"
        assert await world.once("b") == "b"


async def test_what_does_not_fit_is_refused_before_anybody_goes(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(directories, data) as world:
        loaded = world.models.loaded("a")
        assert loaded is not None
        monkeypatch.setattr(finding, "obtainable_bytes", lambda _: loaded.weight_bytes)
        with pytest.raises(FailedPrecondition, match=r"'b' does not fit: .* are missing"):
            await world.once("b")
        assert world.models.loaded("a") is loaded


@pytest.mark.slow
async def test_a_model_beside_other_processes_serves_with_what_they_leave(
    directories: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pool is planned as if they were not there; but if it took more of that at once than there is, all requests
    would be refused.
    """
    async with serving(directories, data) as world:
        await world.once("b")
        b = world.models.loaded("b")
        assert b is not None
        for_kv = 4 * agent_bytes(b.geometry, b.context_length)
        there = b.weight_bytes + b.activation_bytes + for_kv
        await world.once("a")
        monkeypatch.setattr(finding, "_FRESH_SECONDS", 0.0)
        monkeypatch.setattr(finding, "obtainable_bytes", lambda _: there)
        await world.once("b")
        b = world.models.loaded("b")
        assert b is not None
        assert b.memory.sizes.pool_bytes(b.geometry) > for_kv, "for the time when they have ended"
        request = MemoryRequest(AgentKey("ns", "agent", "b"), [], 1000)
        reservation = await b.memory.admission.reserve(request, 0)
        b.memory.admission.release(reservation)
        assert b.memory.admission.spare() >= 0


@pytest.mark.slow
async def test_files_that_change_during_a_load_are_noticed(
    directories: dict[str, str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = write_llama(tmp_path / "m", seed=3)
    async with serving({"a": directories["a"], "b": str(changing)}, data) as world:

        def while_reading(info: Any, network: Any) -> Any:
            yield from read_weights(info, network)
            if info.model_id == "b":
                write_llama(tmp_path / "other", seed=4)
                (tmp_path / "other" / "model.safetensors").replace(changing / "model.safetensors")

        monkeypatch.setattr(loading, "read_weights", while_reading)
        with pytest.raises(FailedPrecondition, match="changed while it was loaded"):
            await world.once("b")
        monkeypatch.undo()
        assert await world.once("b") == "b"


async def test_a_default_that_cannot_be_loaded_says_why(tmp_path: Path, data: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with serving({"empty": str(tmp_path / "empty")}, data, start=False) as world:
        with pytest.raises(FailedPrecondition, match="'empty' cannot be loaded"):
            await world.models.start()


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(Unavailable) as caught:
        await work
    return str(caught.value)


async def test_a_stop_sends_those_who_wait_away(directories: dict[str, str], data: Path) -> None:
    async with serving(directories, data) as world, AsyncExitStack() as running:
        await running.enter_async_context(world.models.use("a"))
        b = asyncio.create_task(world.once("b"))
        await world.until(lambda: world.state("a") == State.MODEL_STATE_DRAINING)
        await world.models.stop()
        assert "shutting down" in await refused(b)
