"""Dialogues as tokens: where the assistant speaks, and where they are cut."""

from __future__ import annotations

import pytest

from benchmarks.architectures.texts import FIRST_SEED, Text, check, make_texts
from benchmarks.demo_model.dialogues import make_dialogue
from benchmarks.demo_model.tokenizer import END, START
from benchmarks.models import DEMO
from inference_service.models.opening import ModelSpec, open_text
from inference_service.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_text(ModelSpec("demo", DEMO)).tokenizer


@pytest.mark.parametrize(("length", "decoded"), [(256, 64), (512, 192), (1024, 300)])
def test_a_text(tokenizer: Tokenizer, length: int, decoded: int) -> None:
    [text] = make_texts(DEMO, {length: 1}, decoded)
    dialogue = make_dialogue(FIRST_SEED, length)

    def said(positions: list[int]) -> str:
        return tokenizer.decode([text.token_ids[position] for position in positions]).decode()

    replies = [message["content"] for message in dialogue.messages if message["role"] == "assistant"]
    assert said(text.spoken) == "".join(reply + END for reply in replies)
    answers = [said(list(range(*answer))) for answer in text.answers]
    assert answers == [question.expected + END for question in dialogue.questions]
    assert said([text.split, text.split + 1]) == f"{START}user"
    left = len(text.token_ids) - text.split
    assert decoded <= left < decoded + length // 2
    assert not any(first <= text.split < behind for first, behind in text.answers), "no answer is in both phases"
    assert len({text.prefilled(position) for position in text.spoken}) == 2
    check([text])


def test_texts_that_cannot_be_cut_are_refused() -> None:
    for split in (0, 1, 9):
        with pytest.raises(ValueError, match="take longer ones"):
            check([Text(10, list(range(10)), split, [3], [])])
