"""The real language model with windows is what its packages say: it knows languages, near and far."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import gemma3
from tests.benchmarks import real_models
from tests.benchmarks.real_models import TEXT, perplexity

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded() -> Any:
    return real_models.loaded(gemma3.directory)


def test_it_knows_english(loaded: Any) -> None:
    """With norms as GGUF has them, or products of another order, it knows nothing."""
    assert perplexity(*loaded, TEXT) < 15


def test_it_finds_what_is_beyond_its_windows(loaded: Any) -> None:
    """A second copy of a text, 700 tokens later, is in its full layers only."""
    names = "".join(f"Number {at} is {at * 7919 % 1000}. " for at in range(90))
    first = len(loaded[1].encode(TEXT + names))
    assert perplexity(*loaded, TEXT + names + TEXT, first) < 3


def test_its_tokenizer_loses_nothing(loaded: Any) -> None:
    _, tokenizer = loaded
    text = "x = 1984  # naïve 😀\n\n\tdef f():"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.encode(text)[0] == tokenizer.bos_token_id == 2


def test_the_directory_is_a_model_with_windows(loaded: Any) -> None:
    config = json.loads((gemma3.directory() / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["sliding_window"]) == ("gemma3_text", 18, 512)
    assert config["max_position_embeddings"] == 32_768
