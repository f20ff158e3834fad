"""The real language models are what their packages say: they know languages, and their tokenizers lose nothing.

With rows of queries and keys in GGUF's order, or norms as GGUF has them, perplexity is in the hundreds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import gemma3, smollm2
from tests.benchmarks.real_models import TEXT, loaded, perplexity

MODELS = [
    pytest.param(smollm2.directory, id="smollm2"),
    pytest.param(gemma3.directory, id="gemma3", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("directory", MODELS)
def test_it_knows_english(directory: Callable[[], Path]) -> None:
    model, tokenizer = loaded(directory)
    assert perplexity(model, tokenizer, TEXT) < 15
    text = "x = 1984  # naïve 😀\n\n\tdef f():"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.slow
def test_gemma_finds_what_is_beyond_its_windows() -> None:
    """A second copy of a text, 700 tokens later, is in its full layers only."""
    model, tokenizer = loaded(gemma3.directory)
    names = "".join(f"Number {at} is {at * 7919 % 1000}. " for at in range(90))
    first = len(tokenizer.encode(TEXT + names))
    assert perplexity(model, tokenizer, TEXT + names + TEXT, first) < 3
