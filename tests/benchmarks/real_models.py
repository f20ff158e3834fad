"""Real language models with their tokenizers, and how well they predict a text."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

from benchmarks.packages import Unavailable

TEXT = "The capital of France is Paris, and that of Italy is Rome. In 1789 the people of Paris stormed the Bastille."


def loaded(directory: Callable[[], Path]) -> Any:
    """Return the model of a directory, in float32, and its tokenizer. Skips the test where it cannot be had."""
    try:
        model, tokenizer = mlx_lm.load(str(directory()))[:2]
    except Unavailable as problem:
        pytest.skip(str(problem))
    model.set_dtype(mx.float32)
    return model, tokenizer


def perplexity(model: Any, tokenizer: Any, text: str, first: int = 0) -> float:
    """Return the perplexity of the text's tokens after the first so many."""
    ids = mx.array(tokenizer.encode(text))
    logits = model(ids[None])[0, :-1]
    nll = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, ids[1:, None], axis=-1)[:, 0]
    return math.exp(nll[first:].mean().item())
