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
    assert all(TOKENS * 0.6 < chat.values[0].start < TOKENS + 30 for chat in chats)
    assert chats[0] != chats[1]
    assert chats == make_chats(2, TOKENS, real_model.text().tokenizer, real_model.render)


def test_every_answer_was_told_before_the_passages(chats: list[Chat]) -> None:
    tokenizer = real_model.text().tokenizer
    for chat in chats:
        told, _, read = tokenizer.decode(chat.token_ids).decode().partition("Please read this passage:")
        assert read
        values, sentences = [], set()
        for place in chat.values:
            up_to = tokenizer.decode(chat.token_ids[: place.stop]).decode()
            asked, _, sentence = up_to.rpartition("<|im_start|>assistant\n")
            value = tokenizer.decode(chat.token_ids[place.start : place.stop]).decode()
            assert asked.endswith("?<|im_end|>\n")
            assert value not in asked.rpartition("<|im_start|>user\n")[2], "the question does not give it away"
            assert sentence.endswith(value) and value.startswith(" ")
            assert told.count(f"{sentence}.") == 3, "told, repeated, and asked for once"
            values.append(value)
            sentences.add(sentence)
        assert len(sentences) == len(set(values)) == len(chat.values) == 12
        assert chat.values == sorted(chat.values, key=lambda place: place.start)
