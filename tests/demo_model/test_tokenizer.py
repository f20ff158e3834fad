"""The bundled tokenizer and chat template: any text round-trips, and a rendering is only ever appended to."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.demo_model.filler import count_tokens, filler_text
from benchmarks.demo_model.world import KINDS, Fact

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=40)}),
    min_size=1,
    max_size=6,
)


@given(text=st.text())
@settings(deadline=None)
def test_any_text_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(messages=MESSAGES, kept=st.integers(1, 6))
@settings(deadline=None)
def test_rendering_more_never_changes_what_was_rendered(
    tokenizer: Any, messages: list[dict[str, str]], kept: int
) -> None:
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole.startswith(tokenizer.apply_chat_template(messages[:kept], tokenize=False))


def test_a_generated_reply_renders_as_it_was_generated(tokenizer: Any) -> None:
    asked = [{"role": "user", "content": "Where is the key?"}]
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    reply = "The key is in the cellar."
    history = tokenizer.apply_chat_template([*asked, {"role": "assistant", "content": reply}], tokenize=False)
    assert history == f"{prompt}{reply}<|im_end|>\n"


def test_special_tokens(tokenizer: Any) -> None:
    names = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    assert [tokenizer.convert_tokens_to_ids(token) for token in names] == [0, 1, 2, 3]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == (names[0], names[2], None)
    ids = tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": "Hello."}], tokenize=False))
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id


def test_words_of_the_world_are_single_tokens(tokenizer: Any) -> None:
    facts = [
        Fact(kind, entity, value).answer
        for kind in KINDS
        for entity, value in zip(kind.entities, kind.values, strict=False)
    ]
    questions = [question.format(e=kind.entities[0]) for kind in KINDS for question in kind.questions]
    for text in (*facts, *questions, filler_text(random.Random(1), 200)):
        assert len(tokenizer.encode(text)) == count_tokens(text)
