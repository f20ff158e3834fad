"""A store that does not answer while a model is loaded: the model serves, and its setup is agreed on afterwards."""

import base64
import json
from pathlib import Path

import pytest

from inference_service.models import shared_setups
from tests.inference_service.models.test_kv_setup import Setups, others
from tests.inference_service.models.world import World, serving

pytestmark = pytest.mark.usefixtures("by_openblas", "at_once")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked again without long pauses."""
    monkeypatch.setattr(shared_setups, "_PAUSES_SECONDS", (0.01, 0.05))


def means(world: World) -> bytes:
    """Those that the model has, as they are shared."""
    loaded = world.models.loaded("a")
    assert loaded is not None and loaded.calibration is not None
    return base64.b64encode(loaded.calibration.portable)


async def test_a_setup_that_could_not_be_shared_is_shared_later(directories: dict[str, str], tmp_path: Path) -> None:
    setups = Setups()
    setups.silent = True
    async with serving({"a": directories["a"]}, tmp_path, share=setups.share) as world:
        assert await world.once("a") == "a", "the load waits for no store"
        asked = setups.asked
        await world.until(lambda: setups.asked > asked + 2)
        assert not setups.kept
        setups.silent = False
        await world.until(lambda: bool(setups.kept))
        [value] = setups.kept.values()
        assert json.loads(value)["means"].encode() == means(world)
        asked = setups.asked
        assert await world.once("a") == "a"
        assert (setups.asked, world.events.told) == (asked, [("arrived", "a")]), "it is not asked any more"


@pytest.mark.slow
@pytest.mark.parametrize("far", [False, True])
async def test_where_another_machine_was_first_the_model_is_loaded_again(
    directories: dict[str, str], tmp_path: Path, far: bool
) -> None:
    """With the setup that all have, unless that cannot be this model's (`far`)."""
    setups = Setups()
    async with serving({"a": directories["a"]}, tmp_path / "first", share=setups.share):
        [(name, value)] = setups.kept.items()
    setups.kept[name] = others(value, far=far)
    setups.silent = True
    async with serving({"a": directories["a"]}, tmp_path / "second", share=setups.share) as world:
        before = means(world)
        async with world.models.use("a"):
            setups.silent = False
            asked = setups.asked
            await world.until(lambda: setups.asked > asked)
            assert world.events.told == [("arrived", "a")], "what runs ends first"
        if far:
            assert await world.once("a") == "a"
            assert (means(world), world.events.told) == (before, [("arrived", "a")])
            return
        again = [("arrived", "a"), ("leaving", "a"), ("setup", "a"), ("arrived", "a")]
        await world.until(lambda: world.events.told == again)
        assert means(world) == json.loads(setups.kept[name])["means"].encode() != before


@pytest.mark.slow
async def test_a_model_that_is_loaded_again_asks_anew(directories: dict[str, str], tmp_path: Path) -> None:
    """What waits to be shared of one load is not shared beside what the next one finds."""
    setups = Setups()
    setups.silent = True
    sources = {name: directories[name] for name in "ab"}
    async with serving(sources, tmp_path, share=setups.share) as world:
        for name in "aba":
            await world.once(name)
        setups.silent = False
        await world.until(lambda: len(setups.kept) == 2)
        assert not [told for told in world.events.told if told[0] == "setup"]
