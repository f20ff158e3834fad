"""The bundled tokenizer and chat template: any text round-trips, and a rendering is only ever appended to."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.demo_model.dialogues import Message, count_tokens, make_dialogue
from benchmarks.demo_model.tokenizer import BOS, CHAT_TEMPLATE, END, SPECIAL_TOKENS, render

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=40)}),
    min_size=1,
    max_size=6,
)


@given(text=st.text())
@settings(deadline=None)
def test_any_text_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_byte_is_a_token(tokenizer: Any) -> None:
    assert {len(token) for token in tokenizer.backend_tokenizer.get_vocab()} >= {1}
    assert tokenizer.decode(tokenizer.encode("naïve 漢字 🦊 \x00\x7f\t\r\n")) == "naïve 漢字 🦊 \x00\x7f\t\r\n"
    assert tokenizer.unk_token is None


@given(messages=MESSAGES, kept=st.integers(1, 6))
@settings(deadline=None)
def test_rendering_more_never_changes_what_was_rendered(tokenizer: Any, messages: list[Message], kept: int) -> None:
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole == render(messages)
    assert whole.startswith(tokenizer.apply_chat_template(messages[:kept], tokenize=False))


def test_a_generated_reply_renders_as_it_was_generated(tokenizer: Any) -> None:
    asked: list[Message] = [{"role": "user", "content": "Where is the key?"}]
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    reply = "The key is in the cellar."
    history = tokenizer.apply_chat_template([*asked, {"role": "assistant", "content": reply}], tokenize=False)
    assert history == prompt + reply + END + "\n"


def test_one_bos_at_the_start(tokenizer: Any) -> None:
    messages = make_dialogue(1, 512).messages
    ids = tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=True)
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_special_tokens(tokenizer: Any) -> None:
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert (tokenizer.bos_token, tokenizer.eos_token) == (BOS, END)
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_words_of_the_world_are_single_tokens(tokenizer: Any) -> None:
    for seed in range(20):
        for message in make_dialogue(seed, 1024).messages:
            assert len(tokenizer.encode(message["content"])) == count_tokens(message["content"])


def test_dialogues_are_as_long_as_asked_for(tokenizer: Any) -> None:
    for target in (128, 512, 2048, 8192):
        for seed in range(5):
            length = len(tokenizer.encode(render(make_dialogue(seed, target).messages)))
            assert target - 40 < length <= target
