"""The real language model is what its package says: it speaks, and its tokenizer loses nothing."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

from benchmarks import smollm2
from benchmarks.packages import Unavailable

TEXT = "The capital of France is Paris, and that of Italy is Rome. In 1789 the people of Paris stormed the Bastille."


@cache
def directory() -> Path | str:
    """Where it is, or why it cannot be had."""
    try:
        return smollm2.directory()
    except Unavailable as problem:
        return str(problem)


@pytest.fixture(scope="module")
def loaded() -> Any:
    found = directory()
    if isinstance(found, str):
        pytest.skip(found)
    model, tokenizer = mlx_lm.load(str(found))[:2]
    model.set_dtype(mx.float32)
    return model, tokenizer


def test_it_knows_english_and_the_order_of_the_rows_for_rope(loaded: Any) -> None:
    """Rows of queries and keys in GGUF's order give a perplexity in the hundreds."""
    model, tokenizer = loaded
    ids = mx.array(tokenizer.encode(TEXT))
    logits = model(ids[None])[0, :-1]
    nll = (mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, ids[1:, None], axis=-1)[:, 0]).mean().item()
    assert math.exp(nll) < 15


@pytest.mark.slow
def test_it_answers_by_its_chat_template(loaded: Any) -> None:
    model, tokenizer = loaded
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert "Paris" in mlx_lm.generate(model, tokenizer, prompt=prompt, max_tokens=12)


def test_its_tokenizer_splits_digits_and_loses_nothing(loaded: Any) -> None:
    _, tokenizer = loaded
    text = "x = 1984  # naïve 😀\n\n\tdef f():"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1984")) == 4
    assert tokenizer.encode("<|im_start|>") == [1]


def test_the_directory_is_a_model_of_llamas_architecture(loaded: Any) -> None:
    config = json.loads((smollm2.directory() / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["num_key_value_heads"]) == ("llama", 30, 3)
