"""Calibration: that the means are the model's own, that they are kept as data, and what of a file is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.loading import load
from inference_service.engine.calibrating import calibrate, calibrate_in_time
from inference_service.engine.calibration import Calibration, Calibrations, LayerCalibration
from inference_service.engine.device import on_cpu
from inference_service.engine.network import Network
from inference_service.engine.quality import sample
from inference_service.engine.quantization import PLAIN
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama

NAME = "f" * 64


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("calibration")
    return load("tiny", str(write_llama(path / "llama")), hashes=ContentHashes(path / "hashes.json"))


def measuring(model: LoadedModel, token_ids: list[int]) -> Callable[[], Calibration]:
    return partial(calibrate, model.engine.model, token_ids, model.geometry)


@pytest.mark.slow("write_gemma3", "write_gpt_oss")
@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_gpt_oss, write_deepseek2])
def test_means_are_those_of_what_mlx_lm_keeps(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Also of sliding layers, whose own caches would keep the window only, and of K and V of two widths."""
    directory = write(tmp_path / "m")
    model = load("tiny", str(directory), hashes=ContentHashes(tmp_path / "hashes.json"))
    assert model.calibration is not None and model.calibration.fits(model.geometry)
    tokens = sample(model.tokenizer, 32)
    network, _ = mlx_lm.load(str(directory))
    network.set_dtype(mx.float32)
    caches = make_prompt_cache(network)
    mx.eval(network(mx.array([tokens]), cache=caches))
    found = calibrate(Network(network), tokens, model.geometry)
    for cache, own in zip(caches, found.layers, strict=True):
        for side, mean in zip((cache.keys, cache.values), own[:2], strict=True):
            assert np.allclose(np.array(side[0, :, : len(tokens)].mean(axis=1)), mean, atol=2e-3)


@pytest.mark.skipif(not on_cpu(), reason="a GPU is never too slow")
@pytest.mark.parametrize(("seconds", "tokens"), [(0.0, 128), (1e9, 300)])
def test_a_slow_cpu_measures_over_fewer_tokens(llama: LoadedModel, seconds: float, tokens: int) -> None:
    text, network = sample(llama.tokenizer, 300), llama.engine.model
    found = calibrate_in_time(network, text, llama.geometry, seconds)
    assert found == calibrate(network, text[:tokens], llama.geometry)
    assert calibrate_in_time(network, text[:100], llama.geometry, seconds) == calibrate(
        network, text[:100], llama.geometry
    ), "fewer are never too many"


def test_what_is_kept_comes_back_bit_for_bit(llama: LoadedModel, tmp_path: Path) -> None:
    kept, calibration = Calibrations(tmp_path / "calibration"), llama.calibration
    assert calibration is not None
    assert kept.known(NAME, llama.geometry) is None
    kept.keep(NAME, calibration)
    found = kept.known(NAME, llama.geometry)
    assert found == calibration and found.digest == calibration.digest
    assert Calibration.of_arrays(calibration.arrays) == calibration
    assert [path.name for path in (tmp_path / "calibration").iterdir()] == [f"{NAME}.safetensors"]


def test_it_is_measured_once(llama: LoadedModel, tmp_path: Path) -> None:
    kept = Calibrations(tmp_path)
    first = kept.of(NAME, llama.geometry, measuring(llama, [1, 2, 3]))
    assert first is not None
    assert kept.of(NAME, llama.geometry, measuring(llama, [4, 5, 6])) == first, "another text, and not read"
    assert kept.of("other", llama.geometry, measuring(llama, [4, 5, 6])) != first


def test_the_plain_scheme_needs_none(llama: LoadedModel, tmp_path: Path) -> None:
    geometry = replace(llama.geometry, format=replace(llama.geometry.format, scheme=PLAIN))
    assert Calibrations(tmp_path).of(NAME, geometry, measuring(llama, [1, 2, 3])) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [b"", b"no safetensors", None])
def test_a_damaged_file_is_measured_again(text: bytes | None, llama: LoadedModel, tmp_path: Path) -> None:
    kept, path = Calibrations(tmp_path), tmp_path / f"{NAME}.safetensors"
    assert llama.calibration is not None
    kept.keep(NAME, llama.calibration)
    path.write_bytes(path.read_bytes()[:-10] if text is None else text)
    assert kept.known(NAME, llama.geometry) is None
    assert kept.of(NAME, llama.geometry, measuring(llama, [1, 2, 3])) is not None
    assert kept.known(NAME, llama.geometry) is not None


def test_means_of_another_model_are_not_taken(llama: LoadedModel, tmp_path: Path) -> None:
    kept, means = Calibrations(tmp_path), LayerCalibration(*(np.zeros((2, 128), np.float16) for _ in range(2)))
    kept.keep(NAME, Calibration([means] * llama.geometry.layers))
    assert kept.known(NAME, llama.geometry) is None


def test_a_disk_that_takes_nothing_costs_a_measurement_only(llama: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = Calibrations(tmp_path / "file" / "calibration")
    assert kept.of(NAME, llama.geometry, measuring(llama, [1, 2, 3])) is not None


@pytest.mark.parametrize(("factor", "taken"), [(1.2, True), (1.5, False), (0.0, False)])
def test_bases_of_another_place_are_taken_if_they_are_near(factor: float, taken: bool, llama: LoadedModel) -> None:
    """Axes of equal length can be any, with any sign; only lengths of rows count."""
    measured = measuring(llama, list(range(3, 90)))()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(64, 64)))[0]
    first, *others = measured.layers
    assert first.bases is not None
    k, v = first.bases
    turned = first._replace(k_lengths=first.k_lengths * 0) if factor == 0 else first.with_bases(k @ turn * factor, v)
    assert Calibration([turned, *others]).near(measured) == taken
    assert not Calibration([LayerCalibration(first.k, first.v), *others]).near(measured)


def test_logits_that_are_not_finite_leave_bases_as_they_are(llama: LoadedModel) -> None:
    key = llama.engine.model.model.layers[0].self_attn.k_proj
    before = key.weight
    key.weight = before * float("nan")
    try:
        found = calibrate(llama.engine.model, [1, 2, 3], llama.geometry)
    finally:
        key.weight = before
    assert found.fits(llama.geometry)
    for own in found.layers:
        assert own.bases is not None and all((side == np.eye(64)).all() for side in own.bases)


def test_axes_in_127ths_are_the_bases() -> None:
    given = np.random.default_rng(3).normal(size=(2, 2, 64, 64))
    found = LayerCalibration(HALF, HALF).with_bases(given[0], given[1]).bases
    assert found is not None
    for side, kept in zip(given, found, strict=True):
        assert np.abs(side - kept).max() < np.sqrt(np.square(side).sum(axis=1)).max() / 200
    assert LayerCalibration(HALF, HALF).bases is None


def test_what_is_too_large_goes_to_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Calibration([LayerCalibration(HALF, HALF)])
    assert Calibration.of_bytes(small.portable) == small
    monkeypatch.setattr("inference_service.engine.calibration.MOST_PORTABLE", len(small.portable) - 1)
    assert small.portable == b""


HALF = np.zeros((2, 64), np.float16)
AXES = {f"{side}_axes.0": np.zeros((2, 64, 64), np.int8) for side in "kv"}
LENGTHS = {f"{side}_lengths.0": np.ones((2, 64), np.float16) for side in "kv"}
MEANS = {"k.0": HALF, "v.0": HALF}


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"k.0": HALF},
        {"k.0": HALF, "v.1": HALF},
        {"k.0": HALF, "v.0": HALF.astype(np.float32)},
        {"k.0": HALF, "v.0": HALF[0]},
        {"k.0": HALF, "v.0": HALF + np.float16("nan")},
        {"k.0": HALF, "v.0": HALF + np.float16("inf")},
        {**MEANS, **AXES},
        {**MEANS, **AXES, "k_lengths.0": HALF},
        {**AXES, **LENGTHS},
        {**MEANS, **AXES, **LENGTHS, "v_axes.0": AXES["v_axes.0"].astype(np.float16)},
        {**MEANS, **AXES, **LENGTHS, "v_axes.0": AXES["v_axes.0"][0]},
        {**MEANS, **AXES, **LENGTHS, "v_lengths.0": LENGTHS["v_lengths.0"] * np.float16("nan")},
        {**MEANS, **AXES, **LENGTHS, "v_other.0": HALF},
    ],
)
def test_arrays_that_are_no_means_are_refused(arrays: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="means"):
        Calibration.of_arrays(arrays)


def test_a_mean_that_half_precision_cannot_hold_is_not_taken(llama: LoadedModel) -> None:
    """Such a channel is not centred; infinity would make all of it NaN."""
    key = llama.engine.model.model.layers[0].self_attn.k_proj
    before = key.weight
    key.weight = before * 1e9
    try:
        found = calibrate(llama.engine.model, [1, 2, 3], llama.geometry)
    finally:
        key.weight = before
    assert np.isfinite(found.layers[0].k).all() and (found.layers[0].k == 0).any()


def offered(llama: LoadedModel, factor: float) -> tuple[Calibration, Calibration | None]:
    """Return the offer, measured means times `factor`, and the measured means."""
    measured = calibrate(llama.engine.model, [1, 2, 3], llama.geometry)
    others = [own._replace(k=own.k * np.float16(factor), v=own.v * np.float16(factor)) for own in measured.layers]
    return Calibration(others), measured


@pytest.mark.parametrize(("factor", "taken"), [(1.005, True), (1.1, False), (-1.0, False)])
def test_means_of_another_place_are_taken_if_they_are_near(
    factor: float, taken: bool, llama: LoadedModel, tmp_path: Path
) -> None:
    """KV of there then fits here; and nobody can spoil a model for all who use it."""
    kept = Calibrations(tmp_path)
    offer, measured = offered(llama, factor)
    kept.offer(NAME, offer)
    kept.offer("another", offer)
    found = kept.of(NAME, llama.geometry, measuring(llama, [1, 2, 3]))
    assert found == (offer if taken else measured) == kept.known(NAME, llama.geometry)
    kept.offer(NAME, measured)
    assert kept.of(NAME, llama.geometry, measuring(llama, [1, 2, 3])) == found, "what is known stays"
