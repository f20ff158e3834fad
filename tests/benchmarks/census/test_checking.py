"""Faults that the census must find: in batches, in what comes back from memory, and in all that is computed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.census import building, checking
from benchmarks.census.configs import config
from benchmarks.loading import load
from inference_service.engine.arenas import Arenas
from inference_service.engine.caches import BatchQuantizedKVCache, QuantizedKVCache
from inference_service.engine.caches.states import BatchStateCache
from inference_service.engine.caches.views import View
from inference_service.engine.geometry import Caches
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoadedModel]:
    found = config(request.param)
    assert found is not None
    building.write(found, tmp_path / "model")
    hashes = ContentHashes(tmp_path / "weights.json")
    sizes = {"pool_bytes": 16 << 20, "batch_bytes": 64 << 20, "calibration_tokens": 64}
    model = load(request.param, str(tmp_path / "model"), hashes=hashes, **sizes)
    yield model
    model.release()


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


@pytest.mark.slow
@of("llama", "exaone4", "qwen3_next", "deepseek_v3")
def test_what_is_right_is_found_right(model: LoadedModel) -> None:
    found = checking.checked(model)
    assert set(found) == {"mlx-lm", "alone", "batched", "hot", "warm", "partial"}
    assert checking.wrong(found) == {}


def wrong(model: LoadedModel) -> set[str]:
    return set(checking.wrong(checking.checked(model)))


@pytest.mark.slow
@of("llama")
def test_rows_that_see_padding(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchQuantizedKVCache, "make_mask", lambda *_, **__: None)
    assert wrong(model) == {"batched"}


@pytest.mark.slow
@of("qwen3_next")
def test_rows_that_go_on_from_a_neighbours_state(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = BatchStateCache.extend

    def extend(self: BatchStateCache, other: BatchStateCache) -> None:
        original(self, other)
        self.cache = [array[::-1] for array in self.arrays]

    monkeypatch.setattr(BatchStateCache, "extend", extend)
    assert "batched" in wrong(model)
    assert "alone" not in wrong(model)


@pytest.mark.slow
@of("llama", "exaone4")
def test_layers_that_get_each_others_kv_back(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Arenas.caches

    def caches(*args: Any, **kwargs: Any) -> Caches:
        found = original(*args, **kwargs)
        one, other, *_ = (cache for cache in found if isinstance(cache, QuantizedKVCache))
        one.buffers, other.buffers = other.buffers, one.buffers
        return found

    monkeypatch.setattr(Arenas, "caches", caches)
    assert wrong(model) == {"hot", "warm", "partial"}


@pytest.mark.slow
@of("qwen3_next")
def test_a_state_of_another_position(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Arenas.uploaded

    def uploaded(self: Arenas, file: Any, surplus: int, position: int) -> Any:
        found = original(self, file, surplus, position)
        return found._replace(states=[[mx.zeros_like(array) for array in layer] for layer in found.states])

    monkeypatch.setattr(Arenas, "uploaded", uploaded)
    assert wrong(model) == {"warm", "partial"}


@of("plamo")
def test_layers_that_see_what_comes_later(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong all the time, only mlx-lm's own caches show: the next layer gives them other K and V."""
    monkeypatch.setattr(View, "make_mask", lambda *_, **__: None)
    with pytest.raises(ValueError, match="other K and V than the engine's"):
        checking.checked(model)
