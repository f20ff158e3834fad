"""Variations of dialogues: they fit, questions are answered, and training tokenizes as the tokenizer does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.demo_model.dialogues import Split
from benchmarks.demo_model.tokenizer import render
from benchmarks.demo_model.variations import VARIATIONS

torch = pytest.importorskip("torch", reason="training needs PyTorch, which is no dependency")
from benchmarks.demo_model.batches import Encoder  # noqa: E402

ENCODER = Encoder(Path(__file__).parents[2] / "inference_service" / "demo_model")


@given(
    seed=st.integers(0, 2**40),
    length=st.sampled_from([128, 256, 1024]),
    split=st.sampled_from(["train", "heldout"]),
    chosen=st.sets(st.sampled_from(VARIATIONS)),
)
@settings(max_examples=200, deadline=None)
def test_varied_dialogues_fit_and_answer(seed: int, length: int, split: Split, chosen: set[str]) -> None:
    dialogue = ENCODER.dialogue(seed, length, tuple(name for name in VARIATIONS if name in chosen), split)
    text = render(dialogue.messages)
    ids = ENCODER.encode(text)
    assert ids == ENCODER.tokenizer.encode(text).ids
    assert len(ids) <= length
    assert dialogue.questions[-1].index == len(dialogue.messages) - 2
    for question in dialogue.questions:
        asked, answer = dialogue.messages[question.index : question.index + 2]
        assert asked["role"] == "user"
        assert answer == {"role": "assistant", "content": question.expected}
