"""Logits of few tokens: those that are wanted are what they are among all, and no others are computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.head import Head
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, new_kv, right, run
from tests.inference_service.engine.riders import some_prompts
from tests.oracle import Oracle
from tests.tiny_models import write_deepseek2, write_gemma3, write_llama

LENGTHS = (5, 9, 12)


@pytest.fixture(scope="module", params=[write_llama, write_gemma3, write_deepseek2], ids=["llama", "tied", "latents"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("model"))
    return made


def logits(model: LoadedModel, prompts: list[list[int]], wanted: list[int] | None) -> np.ndarray[Any, Any]:
    """Logits [n, vocabulary] of these tokens of prompts in one pass, or of all."""
    of = Pass([Piece(new_kv(model, len(prompt))(), len(prompt)) for prompt in prompts])
    of.wanted = None if wanted is None else mx.array(wanted)
    found, _ = model.arenas.compute(model.engine.model, of, mx.array([token for each in prompts for token in each]))
    return np.array((found[:, 0] if of.rows else found[0]).astype(mx.float32))


@pytest.mark.parametrize("count", [1, 3], ids=["one piece", "rows"])
def test_wanted_logits_are_those_among_all(model: LoadedModel, count: int) -> None:
    prompts = some_prompts(model, *LENGTHS[:count])
    wanted = [1, sum(LENGTHS[:count]) - 1]
    every, some = (logits(model, prompts, of) for of in (None, wanted))
    assert len(every) == sum(LENGTHS[:count]) and some.shape == (2, every.shape[1])
    np.testing.assert_allclose(some, every[wanted], rtol=1e-4, atol=1e-4)
    assert abs(every[wanted[0]] - every[wanted[1]]).max() > 0.01, "the same everywhere would prove nothing"


def computed(model: LoadedModel, patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each pass, its tokens and those that have logits."""
    found: list[tuple[int, int]] = []
    compute = model.arenas.compute

    def noted(network: Any, of: Pass, tokens: mx.array) -> Any:
        made, written = compute(network, of, tokens)
        found.append((of.tokens, made.size // made.shape[-1]))
        return made, written

    patch.setattr(model.arenas, "compute", noted)
    return found


def test_prompts_have_logits_of_their_last_tokens(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = computed(model, monkeypatch)
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    run(model)
    assert passes[0] == (sum(LENGTHS), len(LENGTHS)) and set(passes[1:]) == {(3, 3)}
    assert all(right(oracle, turn) and turn.whole for turn in turns)


def test_a_head_that_is_not_known_gives_all(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Head, "taken", lambda _self, x: x)
    passes = computed(model, monkeypatch)
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    run(model)
    assert passes[0] == (sum(LENGTHS), sum(LENGTHS))
    assert all(right(oracle, turn) and turn.whole for turn in turns)


@pytest.mark.parametrize("fault", [lambda at: at - 1, lambda at: at[::-1]], ids=["a token before", "another's"])
def test_logits_of_other_tokens_are_found(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, fault: Callable[[mx.array], mx.array]
) -> None:
    taken = Head.taken

    def wrong(self: Head, x: mx.array) -> mx.array:
        with monkeypatch.context() as patch:
            patch.setattr(self, "_wanted", None if self._wanted is None else fault(self._wanted))
            return taken(self, x)

    monkeypatch.setattr(Head, "taken", wrong)
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    run(model)
    assert not all(right(oracle, turn) for turn in turns)
