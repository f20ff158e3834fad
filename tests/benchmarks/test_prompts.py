"""Prompts have exactly as many tokens as asked, whatever the tokenizer."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.models import DEMO
from benchmarks.prompts import Prompts, token_ids
from benchmarks.random_models import write_tokenizer


@pytest.fixture(scope="module", params=["demo", "without merges"])
def prompts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prompts]:
    if request.param == "demo":
        yield Prompts(DEMO)
        return
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory, 400)
    yield Prompts(directory)


@given(tokens=st.integers(1, 300), seed=st.integers())
def test_text_has_so_many_tokens(prompts: Prompts, tokens: int, seed: int) -> None:
    text = prompts.text(tokens, seed)
    assert len(prompts.ids_of(text)) == tokens
    assert text == prompts.text(tokens, seed)


@given(tokens=st.integers(1, 300), seed=st.integers())
def test_so_many_token_ids_that_are_ordinary_and_share_no_beginning(tokens: int, seed: int) -> None:
    one, other = token_ids(8 + tokens, seed), token_ids(8 + tokens, f"not {seed}")
    assert len(one) == 8 + tokens
    assert all(8 <= each < 900 for each in one)
    assert one[:8] != other[:8]
    assert one == token_ids(8 + tokens, seed)
