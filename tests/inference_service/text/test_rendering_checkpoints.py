"""Positions worth resuming at, of real kinds of templates."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.domain import MessagesInput
from inference_service.text.prompt import Rendered, Span
from inference_service.text.rendering import Renderer
from inference_service.text.template import Template
from tests.inference_service.real_tokenizers import (
    ALTERNATING,
    BOS,
    CHATML,
    END,
    SPECIALS,
    START,
    STRICT_ROLES,
    STRIPS_THINKING,
    byte_level_with_bos,
    renderer,
)

THINKS = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
FOLDS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first else '' }}{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
"""As Gemma's: the system message is the beginning of the first turn."""
FOLDS_LAST = (
    "{{ bos_token }}{% for m in messages if m.role != 'system' %}[INST] "
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}{% endfor %}"
)
"""As Mistral's: the system message is in the last turn, wherever that is."""

SYSTEM = {"role": "system", "content": "You are the harbour master."}
TOOL = {"name": "look"}
text = st.lists(st.sampled_from(["a", " b", "\n", "é", "🙂", *SPECIALS, "<|im_", "\ufdd0"]), max_size=5).map("".join)


def chat(*contents: str, system: str | None = None, tools: tuple[dict[str, str], ...] = ()) -> MessagesInput:
    """Return user and assistant by turns, after a system message."""
    said = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return MessagesInput((*([{"role": "system", "content": system}] if system is not None else []), *said), tools)


def parts(of: Renderer, given_chat: MessagesInput, *, generation_prompt: bool = True) -> list[str]:
    rendered = of.messages(given_chat, generation_prompt=generation_prompt, parse_special=False)
    places = (0, *rendered.checkpoints, len(rendered.text))
    return [rendered.text[a:b].decode() for a, b in pairwise(places)]


@pytest.mark.parametrize(
    ("template", "beginning", "between", "generation_prompt"),
    [
        (CHATML, f"{START}system\nBe kind.{END}\n{START}user", "\nhi", f"{START}assistant\n"),
        (THINKS, f"{START}system\nBe kind.{END}\n{START}user", "\nhi", f"{START}assistant\n<think>\n"),
        (FOLDS, f"{START}user\nBe kind.", "\n\nhi", f"{START}model\n"),
    ],
    ids=["ChatML", "a generation prompt that thinks", "system text in the first turn"],
)
def test_the_system_prompt_and_the_last_message(
    template: str, beginning: str, between: str, generation_prompt: str
) -> None:
    of, given_chat = renderer(template), chat("hi", system="Be kind.")
    assert parts(of, given_chat) == [BOS + beginning, f"{between}{END}\n", generation_prompt]
    assert parts(of, given_chat, generation_prompt=False) == [BOS + beginning, f"{between}{END}\n"]
    longer = parts(of, chat("hi", "yes", "so", system="Be kind."))
    assert (longer[0], longer[-1]) == (BOS + beginning, generation_prompt)


ALONE = (SYSTEM, {"role": "developer", "content": "x"}, {"role": "user", "content": "y"}, SYSTEM)
ENDS = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '>' if add_generation_prompt else eos_token }}"


@pytest.mark.parametrize(
    ("template", "given_chat", "generation_prompt", "expected"),
    [
        (CHATML, chat("hi", tools=(TOOL,)), True, [f'{BOS}TOOLS [{{"name": "look"}}]{START}user', None, None]),
        (
            CHATML,
            MessagesInput(ALONE),
            False,
            [f"{BOS}{START}system\n{SYSTEM['content']}{END}\n{START}developer\nx{END}\n{START}user", None],
        ),
        (CHATML, chat("hi"), True, [f"{BOS}{START}user\nhi{END}\n", f"{START}assistant\n"]),
        (CHATML, chat("hi"), False, [None]),
        (CHATML, MessagesInput((SYSTEM,)), False, [f"{BOS}{START}system\n{SYSTEM['content']}{END}\n"]),
        (FOLDS_LAST, chat("hi", system="Be kind."), True, [f"{BOS}[INST] Be kind.", "\n\nhi"]),
        (FOLDS_LAST, chat("hi", "yes", "so", system="Be kind."), True, [None]),
        (ENDS, chat("hi"), True, ["hi>"]),
    ],
    ids=[
        *("tools", "all leading system messages", "neither", "nor a generation prompt", "no user's turn", "no cue"),
        *("a system message that moves", "an end instead of a cue"),
    ],
)
def test_parts(template: str, given_chat: MessagesInput, generation_prompt: bool, expected: list[str | None]) -> None:
    found = parts(renderer(template), given_chat, generation_prompt=generation_prompt)
    assert [part if wanted is not None else None for part, wanted in zip(found, expected, strict=True)] == expected


def test_a_template_that_shows_nothing_has_no_beginning() -> None:
    def refusing(*_: Any, **__: Any) -> str:
        raise ValueError("no")

    for apply, text in (
        (refusing, "text"),
        (lambda *_, **__: "text", "text"),
        (lambda m, **_: " " + m[-1]["content"], " a"),
    ):
        assert Template(apply).system_prefix_length(chat("a", system="x"), text) == 0
        assert Template(apply).generation_prompt_start(chat("a"), text) == 0


def test_a_template_that_refuses_the_stubs_costs_only_the_checkpoint() -> None:
    template = CHATML + "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}"
    assert len(parts(renderer(template), chat("hi", system="Be kind."))) == 1
    folded = renderer(ALTERNATING).messages(chat("hi", tools=(TOOL,)), generation_prompt=True, parse_special=False)
    assert folded.checkpoints == (len(f"{BOS}[INST]"),), "no generation prompt, and no tools in it"


@pytest.mark.parametrize("template", [CHATML, THINKS, FOLDS, STRIPS_THINKING, STRICT_ROLES])
@given(system=text, one=st.lists(text, min_size=1, max_size=3), other=st.lists(text, min_size=1, max_size=3))
def test_chats_with_one_system_prompt_share_their_beginning(
    template: str, system: str, one: list[str], other: list[str]
) -> None:
    first, second = (
        renderer(template).messages(chat(*contents, system=system), generation_prompt=True, parse_special=False)
        for contents in (one, other)
    )
    assert first.checkpoints[0] == second.checkpoints[0]
    shared = first.text[: first.checkpoints[0]]
    assert second.text.startswith(shared)
    assert system.strip().encode() in shared
    for rendered, contents in ((first, one), (second, other)):
        assert len(rendered.checkpoints) == 2
        without = renderer(template).messages(
            chat(*contents, system=system), generation_prompt=False, parse_special=False
        )
        assert rendered.text[: rendered.checkpoints[1]] == without.text, "without any mark, look-alikes included"


def remembered(said: str) -> Rendered:
    """A ledger that this text was generated in."""
    ids = list(byte_level_with_bos().special_spans(said))
    return Rendered(said.encode(), tuple(Span(*each) for each in ids))


@pytest.mark.parametrize("template", [CHATML, THINKS, FOLDS])
@given(content=text)
def test_what_is_added_to_a_conversation_has_its_generation_prompt(template: str, content: str) -> None:
    ledger = remembered(f"{BOS}{START}user\nhi{END}\n{START}assistant\nyes")
    of, new = renderer(template), chat(content)
    with_prompt = of.continuation(ledger, new, generation_prompt=True, parse_special=False).addition
    without = of.continuation(ledger, new, generation_prompt=False, parse_special=False).addition
    (at,) = with_prompt.checkpoints
    assert with_prompt.text[:at] == without.text
    assert without.checkpoints == ()
