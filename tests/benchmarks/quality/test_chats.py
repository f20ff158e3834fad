"""Chats in which facts are told first and asked for last."""

from __future__ import annotations

import pytest

from benchmarks.quality.chats import Chat, make_chats
from tests.benchmarks.quality import real_model

TOKENS = 1024


@pytest.fixture(scope="module")
def chats() -> list[Chat]:
    return make_chats(2, TOKENS, real_model.text().tokenizer, real_model.render)


def test_they_are_as_long_as_asked_and_differ(chats: list[Chat]) -> None:
    assert all(TOKENS * 0.6 < len(chat.token_ids) <= TOKENS for chat in chats)
    assert chats[0] != chats[1]
    assert chats == make_chats(2, TOKENS, real_model.text().tokenizer, real_model.render)


def test_every_answer_was_told_before_the_passages(chats: list[Chat]) -> None:
    tokenizer = real_model.text().tokenizer
    for chat in chats:
        told, _, read = tokenizer.decode(chat.token_ids).decode().partition("Please read this passage:")
        assert read
        sentences = set()
        for question in chat.questions:
            asked, _, sentence = tokenizer.decode(question.token_ids).decode().rpartition("<|im_start|>assistant\n")
            value = tokenizer.decode(question.token_ids[-question.answer :]).decode()
            assert asked.startswith("<|im_start|>user\n")
            assert asked.endswith("?<|im_end|>\n")
            assert sentence.endswith(value)
            assert value.startswith(" ")
            assert told.count(f"{sentence}.") == 3, "told, repeated, and asked for once"
            sentences.add(sentence)
        assert len(sentences) == len(chat.questions) == 12


def test_values_are_not_given_away_by_the_question(chats: list[Chat]) -> None:
    """Of each sort there are two facts with different values."""
    tokenizer = real_model.text().tokenizer
    for chat in chats:
        values = [tokenizer.decode(question.token_ids[-question.answer :]) for question in chat.questions]
        assert len(set(values)) == len(values)


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="500 tokens are too few"):
        make_chats(1, 500, real_model.text().tokenizer, real_model.render)
