"""Which format of reasoning a model has: by mlx-lm's tables, by its vocabulary, by its template."""

from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from inference_service.models.chat_format import chat_template, reasoning_format
from inference_service.text.answering import split_answer
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import CHATML, END, byte_level_backend

_PLAIN = byte_level_backend().to_str()
WRITTEN = "{start}I muse.{end}Hello"


def opened(
    specials: tuple[str, ...] = (), added: tuple[str, ...] = (), template: str = CHATML, **wrapping: Any
) -> tuple[TokenizerWrapper, Tokenizer]:
    backend = type(byte_level_backend()).from_str(_PLAIN)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    whole = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, chat_template=template)
    return TokenizerWrapper(whole, **wrapping), Tokenizer(backend, [backend.token_to_id(END)])


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")


@pytest.mark.parametrize(
    ("specials", "added", "template", "start", "end"),
    [
        ((), ("<think>", "</think>"), CHATML, "<think>\n", "\n</think>\n\n"),
        (("<|channel>", "<channel|>"), (), CHATML, "<|channel>thought\n", "<channel|>"),
        (("[THINK]", "[/THINK]"), (), CHATML, "[THINK]", "[/THINK]"),
        ((), ("<seed:think>", "</seed:think>"), CHATML, "<seed:think>", "</seed:think>"),
        ((), (), CHATML + "{# <think> </think> #}", "<think>", "</think>"),
        (HARMONY, (), CHATML, "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_formats_are_known(
    specials: tuple[str, ...], added: tuple[str, ...], template: str, start: str, end: str
) -> None:
    wrapper, tokenizer = opened(specials, added, template)
    found = reasoning_format(wrapper, tokenizer)
    assert found is not None
    prompt = tokenizer.encode("<|start|>assistant" if specials is HARMONY else f"{END}\n", parse_special=True)
    written = tokenizer.encode(WRITTEN.format(start=start, end=end), parse_special=True)
    said = split_answer(found, tokenizer, prompt, written)
    assert (said.reasoning, said.text) == ("I muse.", "Hello")


def test_transitions_of_mlx_lm_are_taken_over() -> None:
    form = {
        "initial_state": "header",
        "transitions": {
            "header": [("to=self<|message|>", "reasoning"), ("to=user<|message|>", "normal")],
            "reasoning": [("<|eom|>", "header")],
            "normal": [("<|eom|>", "header")],
        },
    }
    wrapper, tokenizer = opened(("<|message|>", "<|eom|>"), response_format=form)
    found = reasoning_format(wrapper, tokenizer)
    assert found is not None
    written = tokenizer.encode("to=self<|message|>hm<|eom|>to=user<|message|>Hello<|eom|>", parse_special=True)
    assert split_answer(found, tokenizer, (), written)[:2] == ("hm", "Hello")


def test_a_model_without_one_has_none() -> None:
    assert reasoning_format(*opened()) is None


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "reasoning_content": "hm"},
]


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{% for message in messages %}{{ message.thinking }}|{% endfor %}", "|hm|"),
        ("{% for message in messages %}{{ message.reasoning_content }}|{% endfor %}", "|hm|"),
        ("{% for message in messages %}{{ message.content }}|{% endfor %}", "a|b|"),
    ],
)
def test_templates_get_reasoning_by_their_own_name(template: str, rendered: str) -> None:
    render = chat_template(opened(template=template)[0])
    assert render is not None
    assert render(MESSAGES, tokenize=False, add_generation_prompt=False) == rendered


def test_a_call_with_text_loses_its_reasoning_where_the_template_would_refuse_both() -> None:
    template = (
        "{% for message in messages %}{% if message.content and message.thinking and message.tool_calls %}"
        "{{ raise_exception('not both') }}{% endif %}{{ message.thinking }}|{% endfor %}"
    )
    render = chat_template(opened(template=template)[0])
    assert render is not None
    calling = {**MESSAGES[1], "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert render([calling], tokenize=False) == "|"
    assert render([{**calling, "content": ""}], tokenize=False) == "hm|"
