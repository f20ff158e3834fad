"""The real language model is what its package says: it speaks, and its tokenizer loses nothing."""

from __future__ import annotations

import json
from typing import Any

import mlx_lm
import pytest

from benchmarks import smollm2
from tests.benchmarks import real_models
from tests.benchmarks.real_models import TEXT, perplexity


@pytest.fixture(scope="module")
def loaded() -> Any:
    return real_models.loaded(smollm2.directory)


def test_it_knows_english_and_the_order_of_the_rows_for_rope(loaded: Any) -> None:
    """Rows of queries and keys in GGUF's order give a perplexity in the hundreds."""
    assert perplexity(*loaded, TEXT) < 15


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
