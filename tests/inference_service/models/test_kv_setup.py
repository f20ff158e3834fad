"""What a model's first load finds of its KV: that `auto` takes what is good, once, and that it is kept as data."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.hints import TurnHints
from agentmem.models import RegisteredModel
from inference_service.engine import quality, rotation
from inference_service.engine.quality import LADDER, Quality
from inference_service.engine.quantization import PLAIN, ROTATED
from inference_service.engine.thread import EngineThread
from inference_service.models import loading
from inference_service.models.kv_setup import choose
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.settings import WorkerSettings
from tests.tiny_models import write_llama

BAD = dict.fromkeys(LADDER, 9.0)
pytestmark = pytest.mark.usefixtures("by_openblas")


@pytest.mark.parametrize(
    ("found", "bits", "reason"),
    [
        ({"4": 0.001}, "4", "the fewest"),
        ({"4": 9.0, "5/4": 0.001}, "5/4", "the fewest"),
        ({"3": 0.001, "4": 9.0, "5/4": 9.0, "6/4": 0.0}, "6/4", "the fewest"),
        ({**BAD, "6": 1.0}, "6", "none of"),
        ({**BAD, "4/3": 0.5, "8": math.inf}, "4", "none of"),
        ({}, "4", "nothing could be measured"),
    ],
)
def test_what_auto_takes(found: dict[str, float], bits: str, reason: str) -> None:
    taken, why = choose(Quality(10, found))
    assert taken == bits and reason in why


def test_what_auto_takes_where_the_check_is_off() -> None:
    assert choose(None)[0] == "4"


@pytest.fixture
async def engine() -> AsyncIterator[EngineThread]:
    engine = EngineThread()
    engine.start()
    yield engine
    await engine.stop(5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("setup") / "m")


class Place:
    """A data directory, and a worker's loader that begins anew each time."""

    def __init__(self, engine: EngineThread, data: Path, directory: Path) -> None:
        self._engine, self._data, self._directory = engine, data, directory

    async def load(self, bits: str | None = None, **settings: object) -> LoadedModel:
        more = {"pool_bytes": 1 << 22, "batch_bytes": 1 << 22, **settings}
        loader = Loader(self._engine, WorkerSettings(data=self._data, **more), TurnHints())  # type: ignore[arg-type]
        opened = await loader.open(RegisteredModel("m", str(self._directory), kv_bits=bits), lambda *_: None)
        self.bits_before_weights = str(opened.info.geometry.format)
        loaded = await loader.load(opened, [], lambda *_: None)
        await self._engine.call(loaded.release)
        loader.stop()
        return loaded


@pytest.fixture
def place(engine: EngineThread, tmp_path: Path, directory: Path) -> Place:
    return Place(engine, tmp_path / "data", directory)


def bits_of(model: LoadedModel) -> str:
    return str(model.geometry.format)


async def test_auto_takes_the_fewest_good_bits_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The random model is no language model, so a limit between its rungs is set."""
    measured = (await place.load("8")).quality
    assert measured is not None
    four = measured.divergences["4"]
    monkeypatch.setattr(quality, "MOST_NATS", 0.9 * four)
    first = await place.load()
    assert place.bits_before_weights == "4", "nothing was known yet"
    assert bits_of(first) in LADDER[1:]
    assert first.quality is not None and bits_of(first) == first.quality.recommended
    assert "the fewest of" in first.setup.reason
    monkeypatch.setattr(quality, "MOST_NATS", 2 * four)
    again = await place.load()
    assert place.bits_before_weights == bits_of(again) == bits_of(first), "another limit changes no KV"
    assert again.fingerprint == first.fingerprint
    assert "first load" in again.setup.reason
    fixed = await place.load("4")
    assert (bits_of(fixed), fixed.setup.reason) == ("4", "as set")
    assert fixed.fingerprint != first.fingerprint
    assert fixed.calibration == first.calibration, "the means are the model's, whatever the bits"


async def test_auto_decides_nothing_for_good_without_a_measurement(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured = await place.load(quality_check=False)
    assert (bits_of(unmeasured), unmeasured.quality) == ("4", None)
    monkeypatch.setattr(quality, "MOST_NATS", 0.0)
    assert bits_of(await place.load()) == "8"


@pytest.mark.parametrize("kept", ["7", 4, None, ["4"]])
async def test_a_choice_that_cannot_be_read_is_made_again(kept: object, place: Place, tmp_path: Path) -> None:
    first = await place.load()
    file = tmp_path / "data" / "worker" / "kv_bits.json"
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), kept)))
    assert bits_of(await place.load()) == bits_of(first)


async def test_a_backend_that_rotates_wrongly_gets_the_plain_scheme(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = await place.load("4")
    assert good.geometry.format.scheme == ROTATED and good.calibration is not None
    monkeypatch.setattr(loading, "ATTENTION", type(loading.ATTENTION)())  # what was proved is remembered
    monkeypatch.setattr(rotation, "_transformed", lambda x, *_: x[..., ::-1])
    found = await place.load("4")
    assert found.geometry.format.scheme == PLAIN
    assert found.calibration is None and found.fingerprint != good.fingerprint
    assert "rotating them fails on this backend" in caplog.text
