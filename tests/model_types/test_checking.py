"""Faults that the census must find: in batches, in what comes back from memory, and in all that is computed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.loading import load
from inference_service.engine.paged import passes
from inference_service.engine.paged.checkpoints import Checkpoints, Start
from inference_service.engine.paged.passes import ArrayKVCache, Pieces
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.sequence import States, gathered
from inference_service.engine.paged.store import KVStore
from inference_service.engine.paged.views import View
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.model_types import building, checking
from tests.model_types.configs import config


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoadedModel]:
    found = config(request.param)
    assert found is not None
    building.write(found, tmp_path / "model")
    hashes = ContentHashes(tmp_path / "weights.json")
    sizes: dict[str, Any] = {"pool_bytes": 64 << 20, "batch_bytes": 64 << 20, "calibration_tokens": 64}
    model = load(request.param, str(tmp_path / "model"), hashes=hashes, **sizes)
    yield model
    model.release()


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


@pytest.mark.slow
@of("llama", "exaone4", "qwen3_next", "deepseek_v3", "falcon_h1", "mamba2")
def test_what_is_right_is_found_right(model: LoadedModel) -> None:
    found = checking.checked(model)
    assert set(found) == {"mlx-lm", "alone", "batched", "hot", "warm", "partial"}
    assert checking.wrong(found) == {}


def wrong(model: LoadedModel) -> set[str]:
    return set(checking.wrong(checking.checked(model)))


@pytest.mark.slow
@of("llama")
def test_rows_that_see_each_others_tokens(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ArrayKVCache.update_and_fetch

    def swapped(self: ArrayKVCache, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        seen, others = original(self, keys, values)
        if isinstance(seen, Pieces):
            seen[:] = seen[::-1]
        return seen, others

    monkeypatch.setattr(ArrayKVCache, "update_and_fetch", swapped)
    assert wrong(model) == {"batched", "hot", "warm"}, "what they have computed is kept; partial leaves before that"


@pytest.mark.slow
@of("qwen3_next")
def test_rows_that_go_on_from_a_neighbours_state(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "gathered", lambda sequences: gathered(sequences[::-1]))
    assert "batched" in (found := wrong(model))
    assert "alone" not in found


@pytest.mark.slow
@of("llama", "exaone4")
def test_layers_that_get_each_others_kv_back(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVStore.started
    one, other, *_ = model.geometry.full.layers

    def started(self: KVStore, start: Start) -> KVSequence:
        found = original(self, start)
        found.working[one], found.working[other] = found.working[other], found.working[one]
        return found

    monkeypatch.setattr(KVStore, "started", started)
    assert wrong(model) == {"batched", "hot", "warm", "partial"}


@pytest.mark.slow
@of("qwen3_next")
def test_a_state_of_another_position(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Checkpoints.load

    def load_zeros(self: Checkpoints, sequence: KVSequence, *rest: Any) -> None:
        original(self, sequence, *rest)
        assert sequence.states is not None
        layers = sequence.states.layers
        sequence.states = States([[mx.zeros_like(a) for a in layer if a is not None] for layer in layers])

    monkeypatch.setattr(Checkpoints, "load", load_zeros)
    assert wrong(model) == {"warm", "partial"}


@of("plamo")
def test_layers_that_see_what_comes_later(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mlx-lm's own caches show a constant mistake: the next layer gives them other K and V."""
    monkeypatch.setattr(View, "make_mask", lambda *_, **__: None)
    with pytest.raises(ValueError, match="other K and V than the engine's"):
        checking.checked(model)
