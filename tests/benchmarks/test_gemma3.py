"""The real language model with windows is what its packages say: it knows languages, near and far."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

from benchmarks import gemma3
from benchmarks.packages import Unavailable

pytestmark = pytest.mark.slow

TEXT = "The capital of France is Paris, and that of Italy is Rome. In 1789 the people of Paris stormed the Bastille."


@cache
def directory() -> Path | str:
    """Where it is, or why it cannot be had."""
    try:
        return gemma3.directory()
    except Unavailable as problem:
        return str(problem)


@pytest.fixture(scope="module")
def loaded() -> Any:
    found = directory()
    if isinstance(found, str):
        pytest.skip(found)
    return mlx_lm.load(str(found))[:2]


def perplexity(loaded: Any, text: str, first: int = 0) -> float:
    """Of the tokens after the first so many."""
    model, tokenizer = loaded
    ids = mx.array(tokenizer.encode(text))
    logits = model(ids[None])[0, :-1]
    nll = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, ids[1:, None], axis=-1)[:, 0]
    return math.exp(nll[first:].mean().item())


def test_it_knows_english(loaded: Any) -> None:
    """With norms as GGUF has them, or products of another order, it knows nothing."""
    assert perplexity(loaded, TEXT) < 15


def test_it_finds_what_is_beyond_its_windows(loaded: Any) -> None:
    """A second copy of a text, 700 tokens later, is in its full layers only."""
    names = "".join(f"Number {at} is {at * 7919 % 1000}. " for at in range(90))
    first = len(loaded[1].encode(TEXT + names))
    assert perplexity(loaded, TEXT + names + TEXT, first) < 3


def test_its_tokenizer_loses_nothing(loaded: Any) -> None:
    _, tokenizer = loaded
    text = "x = 1984  # naïve 😀\n\n\tdef f():"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.encode(text)[0] == tokenizer.bos_token_id == 2


def test_the_directory_is_a_model_with_windows(loaded: Any) -> None:
    config = json.loads((gemma3.directory() / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["sliding_window"]) == ("gemma3_text", 18, 512)
    assert config["max_position_embeddings"] == 32_768
