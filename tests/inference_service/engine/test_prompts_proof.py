"""The proof that prompts may ride along as rows of a pass: it finds faults that a chunk alone does not show."""

from typing import Any

import mlx.core as mx
import pytest

from inference_service.engine.paged.passes import ArrayKVCache, Pass, Pieces
from inference_service.engine.paged.store import NO_KERNELS
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import riding_problem
from tests.inference_service.directories import written_by
from tests.tiny_models import write_deepseek2, write_gemma3, write_llama

pytestmark = pytest.mark.sampled(2)


directory = written_by([write_llama, write_gemma3, write_deepseek2], ["llama", "gemma3", "latents"])


def problem(model: LoadedModel) -> str:
    return riding_problem(model.engine.model, model.geometry, NO_KERNELS)


def test_proof_finds_nan_in_rows_of_a_prompt_that_is_right_alone(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = type(model.engine.model).__call__

    def broken(self: Any, tokens: mx.array, cache: Any) -> mx.array:
        logits = original(self, tokens, cache)
        return logits * mx.nan if tokens.shape[0] > 1 else logits

    monkeypatch.setattr(type(model.engine.model), "__call__", broken)
    assert "inf" in problem(model)


def test_proof_finds_rows_that_are_shown_what_another_has(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem(model) == ""
    original = ArrayKVCache.update_and_fetch

    def shows_another(self: ArrayKVCache, keys: mx.array, values: mx.array) -> Any:
        seen, others = original(self, keys, values)
        if not isinstance(seen, Pieces):
            return seen, others
        mixed = Pieces(
            old._replace(keys=new.keys, values=new.values) for old, new in zip(seen, seen[::-1], strict=True)
        )
        return mixed, mixed

    monkeypatch.setattr(ArrayKVCache, "update_and_fetch", shows_another)
    assert problem(model)


def test_proof_finds_rows_that_are_all_at_one_position(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Pass.__init__

    def init(self: Pass, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if self.rows:
            self.offset = mx.array([self.starts[0]] * self.tokens, dtype=mx.int32)

    monkeypatch.setattr(Pass, "__init__", init)
    assert "logits differ by" in problem(model)
