"""Logits of few tokens: those that are wanted are what they are among all, and no others are computed."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear

from inference_service.engine.head import Head
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import begin, new_kv, right, run
from tests.inference_service.engine.riders import some_prompts
from tests.oracle import Oracle
from tests.tiny_models import write_deepseek2, write_llama, write_quantized, write_tiny

LENGTHS = (5, 9, 12)


def write_tied(directory: Path) -> Path:
    return write_tiny(directory, "llama", {"model_type": "llama", "tie_word_embeddings": True}, 0)


def write_quantized_tied(directory: Path) -> Path:
    return write_quantized(directory / "4 bits", write_tied(directory / "model"), group_size=64, bits=4)


directory = written_by(
    [write_llama, write_tied, write_quantized_tied, write_deepseek2], ["llama", "tied", "tied-4-bits", "latents"]
)


@pytest.fixture(autouse=True)
def untraced(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.arenas, "traces", None)


def pass_over(model: LoadedModel, prompts: list[list[int]], *, ends: bool) -> np.ndarray[Any, Any]:
    """Logits [n, vocabulary] of prompts in one pass, of all tokens or the last of each."""
    of = Pass([Piece(new_kv(model, len(prompt))(), len(prompt)) for prompt in prompts], ends=ends)
    found, _ = model.arenas.compute(model.engine.model, of, mx.array([token for each in prompts for token in each]))
    return np.array(found.astype(mx.float32))


@pytest.mark.parametrize("count", [1, 3], ids=["one piece", "rows"])
@pytest.mark.parametrize("known", [True, False])
def test_wanted_logits_are_those_among_all(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, count: int, known: bool
) -> None:
    monkeypatch.setattr(model.engine.model, "narrows", known)
    prompts = some_prompts(model, *LENGTHS[:count])
    ends = np.cumsum(LENGTHS[:count]) - 1
    every, some = (pass_over(model, prompts, ends=each) for each in (False, True))
    assert len(every) == sum(LENGTHS[:count]) and some.shape == (count, every.shape[1])
    np.testing.assert_allclose(some, every[ends], rtol=1e-4, atol=1e-4)
    assert abs(every[ends] - every[ends - 1]).max() > 0.01, "the same everywhere would prove nothing"


@pytest.fixture
def multiplied(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that the head multiplies in each pass."""
    found: list[int] = []
    select = Head.select

    def noted(self: Head, x: mx.array) -> mx.array:
        made = select(self, x)
        found.append(made.size // made.shape[-1])
        return made

    monkeypatch.setattr(Head, "select", noted)
    return found


def test_prompts_have_logits_of_their_last_tokens(model: LoadedModel, oracle: Oracle, multiplied: list[int]) -> None:
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    run(model)
    assert set(multiplied) == {len(LENGTHS)}
    assert all(right(oracle, turn) and turn.whole for turn in turns)


class Ends(nn.Module):  # type: ignore[misc]
    """A model's two kinds of heads."""

    def __init__(self, embedding: nn.Module, linear: nn.Module) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head = embedding, linear


@pytest.mark.parametrize(("embedding", "linear"), [(LoRAEmbedding, LoRALinear), (DoRAEmbedding, DoRALinear)])
def test_an_adapter_of_a_head_multiplies_the_same_tokens(embedding: Any, linear: Any) -> None:
    """It adds its own product to that of the layer which it wraps."""
    model = Ends(embedding.from_base(nn.Embedding(30, 16)), linear.from_base(nn.Linear(16, 30)))
    for layer in (model.embed_tokens, model.lm_head):
        layer.lora_b = mx.random.normal(layer.lora_b.shape)
    x, wanted = mx.random.normal((1, 6, 16)), mx.array([2, 5])
    every = [model.embed_tokens.as_linear(x), model.lm_head(x)]
    head = Head(model)
    with head.of(wanted, 6):
        some = [model.embed_tokens.as_linear(x), model.lm_head(x)]
    for found, among in zip(some, every, strict=True):
        np.testing.assert_allclose(np.array(found), np.array(among[:, wanted]), rtol=1e-4, atol=1e-4)


def test_a_head_that_fails_is_used_no_more(model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.engine.model, "narrows", True)
    monkeypatch.setattr(Head, "select", lambda self, x: x if self._wanted is None else 1 / 0)
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    run(model)
    assert not model.engine.model.narrows and all(turn.job.alone for turn in turns)
    assert all(right(oracle, turn) and turn.whole for turn in turns)
