"""The proof that a model computes prompts in one batch: it finds each fault that padding brings to light."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from inference_service.engine.caches.full import BatchQuantizedKVCache

from benchmarks.loading import load
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import prompts_problem
from tests.tiny_models import write_deepseek2, write_gemma3, write_llama

pytestmark = pytest.mark.sampled(2)


@pytest.fixture(scope="module", params=[write_llama, write_deepseek2], ids=["llama", "latents"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("model"))
    return made


def test_proof_finds_nan_behind_a_chunk_that_is_right(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is masked gives where it was NaN, and attention multiplies it by 0."""
    original = type(model.engine.model).__call__

    def broken(self: Any, tokens: mx.array, cache: Any) -> mx.array:
        logits = original(self, tokens, cache)
        return logits * mx.nan if tokens.shape == (2, 1) else logits

    monkeypatch.setattr(type(model.engine.model), "__call__", broken)
    assert "inf" in prompts_problem(model.engine.model, model.geometry)


@pytest.mark.slow
def test_models_with_checkpoints_compute_prompts_one_by_one(tmp_path: Path) -> None:
    gemma = load("gemma", str(write_gemma3(tmp_path)), hashes=ContentHashes(tmp_path / "weights.json"))
    assert not gemma.engine.model.prompts_together


def test_proof_finds_padding_that_is_seen(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompts_problem(model.engine.model, model.geometry) == ""
    original = BatchQuantizedKVCache.make_mask

    def sees_padding(self: BatchQuantizedKVCache, n: int, *others: Any, **named: Any) -> mx.array | None:
        if n == 1:
            return original(self, n, *others, **named)
        total = self.buffers.filled + n
        return mx.broadcast_to(mx.tri(total, dtype=mx.bool_)[-n:], (len(self.padding), 1, n, total))

    monkeypatch.setattr(BatchQuantizedKVCache, "make_mask", sees_padding)
    assert "logits differ by" in prompts_problem(model.engine.model, model.geometry)


def test_proof_finds_positions_that_count_padding(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        BatchQuantizedKVCache, "offset", property(lambda self: mx.array([self.buffers.filled] * len(self.padding)))
    )
    assert "logits differ by" in prompts_problem(model.engine.model, model.geometry)
