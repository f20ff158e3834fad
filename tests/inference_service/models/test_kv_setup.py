"""A model's first load finds its KV setup, where `auto` takes what is good, once, and keeps it as data."""

import base64
import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.hints import TurnHints
from agentmem.process.models import RegisteredModel
from inference_service.engine import codec, quality
from inference_service.engine.calibration import Calibration
from inference_service.engine.geometry import LayerGroup
from inference_service.engine.quality import LADDER, Divergence, Quality
from inference_service.engine.quantization import BALANCED, PLAIN, ROTATED, KVFormat
from inference_service.engine.thread import EngineThread
from inference_service.models import finding, kv_setup
from inference_service.models.kv_setup import KVSetup, KVSetups, choose
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.settings import WorkerSettings
from tests.inference_service.engine.geometries import geometry
from tests.tiny_models import write_llama

BAD = dict.fromkeys(LADDER, 9.0)
pytestmark = [pytest.mark.usefixtures("by_openblas"), pytest.mark.sampled(2)]


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
    taken, why = choose(quality_of(found))
    assert taken == bits and reason in why


@pytest.fixture
async def engine() -> AsyncIterator[EngineThread]:
    engine = EngineThread()
    engine.start()
    yield engine
    await engine.stop(5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("setup") / "m")


class Setups:
    """Setups that a cluster's machines share: the first of a name stays."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.silent = False
        """The store does not answer."""
        self.late: bytes = b""
        """Given by another machine between the question and the answer."""

    async def share(self, name: str, value: bytes) -> bytes | None:
        if self.silent:
            return None
        if not value:
            return self.kept.get(name, b"")
        if self.late:
            self.kept.setdefault(name, self.late)
        return self.kept.setdefault(name, value)


class Place:
    """A data directory, and a worker's loader, another one at each load."""

    def __init__(self, engine: EngineThread, data: Path, directory: Path, setups: Setups | None = None) -> None:
        self._engine, self._data, self._directory = engine, data, directory
        self._shared = () if setups is None else (setups.share,)

    async def load(self, bits: str | None = None, **settings: object) -> LoadedModel:
        more = {"pool_bytes": 1 << 22, **settings}
        loader = Loader(self._engine, WorkerSettings(data=self._data, **more), TurnHints(), *self._shared)  # type: ignore[arg-type]
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


@pytest.mark.slow
async def test_auto_takes_the_fewest_good_bits_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The random model is no language model, so a limit between its rungs is set."""
    measured = (await place.load("8")).quality
    assert measured is not None
    four = measured.divergences["4"].mean
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


@pytest.mark.slow
async def test_auto_decides_nothing_for_good_without_a_measurement(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured = await place.load(quality_check=False)
    assert (bits_of(unmeasured), unmeasured.quality) == ("4", None)
    monkeypatch.setattr(quality, "MOST_NATS", 0.0)
    assert bits_of(await place.load()) == "8"


def quality_of(nats: dict[str, float]) -> Quality:
    return Quality(10, {bits: Divergence(kl, kl) for bits, kl in nats.items()})


class Found:
    """A model's setup by fingerprint, with a measurement that gives one result after the other."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, *results: Quality) -> None:
        self.setups, self.left = KVSetups(directory, quality_check=True), list(results)
        patch.setattr(kv_setup, "quality_of", lambda *_, **__: self.left.pop(0))

    def of(self, fingerprint: str, bits: str | None = None, group_size: int = 64, scheme: str = PLAIN) -> KVSetup:
        format = KVFormat(group_size=group_size, scheme=scheme).with_bits(bits or "4")
        info: Any = SimpleNamespace(
            geometry=replace(geometry(), format=format, full=LayerGroup((), 2, 64, 64)),
            tokenizer=None,
            spec=SimpleNamespace(quantization=SimpleNamespace(bits=bits)),
        )
        return self.setups.of(fingerprint, None, info)  # type: ignore[arg-type]


FINE, WIDE, NONE = quality_of({"4": 9.0, "5/4": 0.001}), quality_of({"4": 9.0, "5/4": 9.0, "6/4": 0.0}), quality_of({})


def test_a_model_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its fingerprint, group size and transform; and again only if it is asked for other bits."""
    found = Found(tmp_path, monkeypatch, FINE, NONE, WIDE, WIDE)
    first = found.of("a")
    assert (first.quality, str(first.format)) == (FINE, "5/4") and "the fewest" in first.reason
    again = Found(tmp_path, monkeypatch, *found.left)
    assert (again.of("a").quality, str(again.of("a").format)) == (FINE, "5/4")
    assert "first load" in again.of("a").reason
    assert (again.of("a", "5/4").quality, again.of("a", "5/4").reason) == (FINE, "as set")
    assert [again.of("b").quality for _ in range(2)] == [NONE, NONE], "that nothing can be compared is known, too"
    assert [again.of("a", group_size=32).quality for _ in range(2)] == [WIDE, WIDE]
    assert again.of("a", "6/4").quality == WIDE
    assert (again.of("a").quality, str(again.of("a").format)) == (WIDE, "5/4"), "bits that auto chose stay"
    assert again.left == []
    assert Found(tmp_path, monkeypatch, FINE).of("a", scheme=ROTATED).quality == FINE


@pytest.mark.parametrize(
    "damage",
    [
        3,
        {"tokens": None},
        {"divergences": {"4": "good"}},
        {"divergences": {"4": [math.nan, 0.1], "5/4": [0.0, 0.0]}},
        {"divergences": {"4": [-1.0, 0.1]}},
        {"divergences": {"4": [0.1]}},
        {"divergences": {"7": [0.1, 0.1]}},
        {"divergences": [0.1]},
        {"bits": "7", "scheme": None},
        {"bits": ["4"], "divergences": None},
    ],
    ids=str,
)
def test_what_cannot_be_read_is_found_again(damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Found(tmp_path, monkeypatch, FINE).of("a")
    [(key, record)] = json.loads((tmp_path / "kv_setup.json").read_text()).items()
    (tmp_path / "kv_setup.json").write_text(json.dumps({key: record | damage if isinstance(damage, dict) else damage}))
    found = Found(tmp_path, monkeypatch, WIDE).of("a")
    kept = isinstance(damage, dict) and "bits" not in damage
    assert (found.quality, str(found.format)) == (WIDE, "5/4" if kept else "6/4")
    assert Found(tmp_path, monkeypatch).of("a").quality == WIDE, "and is mended"


def others(value: bytes, *, bits: str = "", far: bool = False) -> bytes:
    """The setup of a machine of another kind: means that differ in their last bits, or are another model's (`far`)."""
    found = json.loads(value)
    means = Calibration.of_bytes(base64.b64decode(found["means"]))
    moved = [
        own._replace(**{side: np.nextafter(getattr(own, side), np.float16(2)) + np.float16(far) for side in "kv"})
        for own in means.layers
    ]
    found["means"] = base64.b64encode(Calibration(moved).portable).decode()
    return json.dumps({**found, "bits": bits or found["bits"]}).encode()


@pytest.mark.slow
async def test_machines_of_a_cluster_have_one_setup(engine: EngineThread, tmp_path: Path, directory: Path) -> None:
    """Means and bits of who loaded the model first, so that KV of one machine fits on all."""
    setups = Setups()
    first = await Place(engine, tmp_path / "first", directory, setups).load()
    [(name, value)] = setups.kept.items()
    setups.kept[name] = others(value, bits="6/4")
    second = await Place(engine, tmp_path / "second", directory, setups).load()
    assert bits_of(second) == "6/4" and second.calibration != first.calibration
    third = await Place(engine, tmp_path / "third", directory, setups).load()
    assert third.fingerprint == second.fingerprint != first.fingerprint
    joined = await Place(engine, tmp_path / "first", directory, setups).load()
    assert joined.fingerprint == third.fingerprint, "a machine that was alone before takes the cluster's"


@pytest.mark.slow
async def test_of_two_that_load_at_once_one_takes_the_others_setup(
    engine: EngineThread, tmp_path: Path, directory: Path
) -> None:
    setups = Setups()
    await Place(engine, tmp_path / "alone", directory, setups).load("4")
    [value] = setups.kept.values()
    setups.kept.clear()
    setups.late = others(value)
    loaded = await Place(engine, tmp_path / "late", directory, setups).load("4")
    assert loaded.calibration is not None
    assert base64.b64decode(json.loads(setups.late)["means"]) == loaded.calibration.portable


@pytest.mark.slow
@pytest.mark.parametrize("far", [False, True])
async def test_silent_store_delays_no_load_and_is_asked_at_the_next(
    engine: EngineThread, tmp_path: Path, directory: Path, far: bool
) -> None:
    """Where another machine was first by then, its setup is taken, unless that cannot be this model's (`far`)."""
    setups = Setups()
    here, elsewhere = (Place(engine, tmp_path / name, directory, setups) for name in ("here", "elsewhere"))
    setups.silent = True
    alone = await here.load("4")
    assert not setups.kept
    setups.silent = False
    await elsewhere.load("4")
    [(name, value)] = setups.kept.items()
    setups.kept[name] = others(value, far=far)
    again = await here.load("4")
    assert (again.fingerprint == alone.fingerprint) is far


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad", [b"no JSON", b"{}", b'{"bits": "4", "means": ""}', b'{"bits": "4", "auto": true, "means": "AAAA"}', None]
)
async def test_a_shared_setup_that_does_not_fit_is_left(
    bad: bytes | None, engine: EngineThread, tmp_path: Path, directory: Path
) -> None:
    """Unreadable, or another model's means (None): whoever shares cannot spoil the model for others."""
    setups = Setups()
    first = await Place(engine, tmp_path / "first", directory, setups).load("4")
    [(name, value)] = setups.kept.items()
    setups.kept[name] = others(value, far=True) if bad is None else bad
    second = await Place(engine, tmp_path / "second", directory, setups).load("4")
    assert second.calibration == first.calibration


@pytest.mark.slow
async def test_a_backend_that_multiplies_wrongly_gets_the_plain_scheme(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = await place.load("4")
    assert good.geometry.format.scheme == BALANCED and good.calibration is not None
    (place._data / "worker" / "proofs.json").unlink()
    monkeypatch.setattr(finding, "ATTENTION", type(finding.ATTENTION)())  # what was proved is remembered
    monkeypatch.setattr(codec, "_by_head", lambda x, *_: mx.roll(x, 1, axis=-1))
    found = await place.load("4")
    assert found.geometry.format.scheme == PLAIN
    assert found.calibration is None and found.fingerprint != good.fingerprint
    assert "transforming them fails on this backend" in caplog.text
