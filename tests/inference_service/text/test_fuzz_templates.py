"""Chat templates put together of the traits that models' templates have: what an append adds is what the chat has.

A template may refuse, by an error of ours that says so. What it renders holds three things: the text is transformers',
what users say is never a special token, and an append to a conversation gives the prompt of the whole chat wherever the
template renders what came before the same.
"""

from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Ledger
from inference_service.domain import MessagesInput
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Planner
from inference_service.text.prompt import Rendered
from inference_service.text.rendering import Renderer
from inference_service.text.template import rendering_at
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import byte_level_backend

Message = dict[str, Any]

STOPS = ("</s>", "<|end|>", "<|return|>", "<|user|>", "<|tool|>")
SPECIALS = ("<s>", *STOPS, "<|system|>", "<|assistant|>", "<|start|>")
OPENERS = ("<|{role}|>", "<|{role}|>\\n", "<|start|>{role}\\n", "[{role}] ", "\\n\\n### {role}:\\n")
CLOSERS = ("<|end|>", "<|end|>\\n", "</s>", " </s>", "[/{role}]", "\\n", "")
MONDAY = "2026-03-02T09:30:00+01:00"


class Traits(NamedTuple):
    """Which traits a template has."""

    beginning: str
    opener: str
    user_closer: str
    answer_closer: str
    last_closer: str | None
    """What ends an answer that ends the chat; None: as every other."""
    content: str
    system: str
    alternates: bool
    asks: bool
    """Whether the generation prompt is there only if asked for."""
    ending: str
    """What ends a chat without a generation prompt."""
    counts: bool

    @property
    def template(self) -> str:
        """The template."""
        begin, name = "{{ '%s' }}", "m.role"
        opener = begin % self.opener.format(role="' + m.role + '")
        content = f"{{{{ {self.content} }}}}"

        def closed(closer: str) -> str:
            return begin % closer.format(role="' + m.role + '") if closer else ""

        answer_closer = closed(self.answer_closer)
        if self.last_closer is not None:
            last = closed(self.last_closer)
            answer_closer = f"{{% if loop.last %}}{last}{{% else %}}{answer_closer}{{% endif %}}"
        number = "({{ loop.index }})" if self.counts else ""
        hoisted = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
        system = {
            "in place": f"{opener}{content}{closed(self.user_closer)}",
            "hoisted": "",
            "refused": "{{ raise_exception('System role not supported') }}",
        }[self.system]
        odd = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
        ask = begin % self.opener.format(role="assistant")
        return (
            f"{self.beginning}{hoisted if self.system == 'hoisted' else ''}{{% for m in messages %}}"
            f"{odd if self.alternates else ''}"
            f"{{% if {name} == 'system' %}}{system}"
            f"{{% elif {name} == 'assistant' %}}{opener}{content}{answer_closer}"
            f"{{% else %}}{opener}{number}{content}{closed(self.user_closer)}{{% endif %}}{{% endfor %}}"
            f"{f'{{% if add_generation_prompt %}}{ask}{{% else %}}{self.ending}{{% endif %}}' if self.asks else ask}"
        )

    @property
    def simple(self) -> bool:
        """Whether nothing in it is a reason to refuse an append."""
        return self.system == "in place" and not self.alternates and not self.counts


def traits(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Traits]:
    """Templates with any traits but those that are `fixed`."""
    free: dict[str, st.SearchStrategy[Any]] = {
        "beginning": st.sampled_from(["", "<s>", "<s>It is {{ strftime_now('%d %b %Y, %H:%M:%S.%f') }}. "]),
        "opener": st.sampled_from(OPENERS),
        "user_closer": st.sampled_from(CLOSERS),
        "answer_closer": st.sampled_from(CLOSERS),
        "last_closer": st.sampled_from([None, None, "", "<|return|>", "</s>"]),
        "content": st.sampled_from(["m.content", "m.content | trim", "m['content'].strip()", "m.content ~ ''"]),
        "system": st.sampled_from(["in place", "in place", "hoisted", "refused"]),
        "alternates": st.booleans(),
        "asks": st.booleans(),
        "ending": st.sampled_from(["", "", "</s>", "\\n"]),
        "counts": st.sampled_from([False, False, False, True]),
    }
    return st.builds(Traits, **{**free, **fixed})


words = st.sampled_from(["hello", "the boat is green", "é🙂", "1234", "<|im_", "{{ m }}", "a\nb"])
hostile = st.lists(st.sampled_from([*SPECIALS, "x", " ", "<|", "end|>"]), min_size=1, max_size=4).map("".join)


def messages(text: st.SearchStrategy[str], roles: tuple[str, ...], most: int) -> st.SearchStrategy[list[Message]]:
    message = st.fixed_dictionaries({"role": st.sampled_from(roles), "content": text})
    return st.lists(message, min_size=1, max_size=most)


@cache
def transformers() -> PreTrainedTokenizerFast:
    backend = byte_level_backend()
    backend.add_special_tokens(list(SPECIALS))
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


@cache
def tokenizer() -> Tokenizer:
    backend = transformers().backend_tokenizer
    return Tokenizer(backend, [backend.token_to_id(stop) for stop in STOPS])


def whole(template: str, chat: list[Message], *, generation_prompt: bool = True) -> str | None:
    """What transformers makes of it; None where the template refuses."""
    try:
        rendered = transformers().apply_chat_template(
            chat, chat_template=template, add_generation_prompt=generation_prompt, tokenize=False
        )
    except Exception:  # noqa: BLE001 - whatever a template raises
        return None
    return str(rendered)


def renderer(template: str) -> Renderer:
    return Renderer(tokenizer(), partial(transformers().apply_chat_template, chat_template=template))


def after_append(template: str, prompt: str, generated: str, new: list[Message]) -> str:
    """All that the model sees after an append to a prompt and what was generated; nothing where it was taken in."""
    ledger = Ledger()
    for text, count in ((prompt, False), (generated, True)):
        ids = tokenizer().encode(text, parse_special=True)
        ledger = ledger.followed_by(ids, tokenizer().pieces(ids), "", len(ids) if count else 0) if text else ledger
    planner = Planner(tokenizer(), renderer(template), MatchLimits())
    kept, addition = renderer(template).continuation(
        Rendered(ledger.text, tuple(planner.specials(ledger))),
        MessagesInput(tuple(new)),
        generation_prompt=True,
        parse_special=False,
        answered=bool(generated),
    )
    return tokenizer().decode(planner.for_append(ledger, addition, kept).sequence).decode()


fuzz = settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@fuzz
@given(
    of=traits(),
    before=messages(words, ("user", "assistant", "system"), 3),
    answer=words,
    new=messages(words, ("user", "user", "assistant", "system"), 3),
    stop=st.sampled_from(["", *STOPS]),
)
def test_an_append_is_the_whole_chat(
    of: Traits, before: list[Message], answer: str, new: list[Message], stop: str
) -> None:
    template = of.template
    with rendering_at(MONDAY):
        prompt = whole(template, before)
        chat = whole(template, [*before, {"role": "assistant", "content": answer}, *new])
        assume(prompt is not None and chat is not None and chat.startswith(prompt + answer))
        assert prompt is not None
        try:
            appended = after_append(template, prompt, answer + stop, new)
        except (FailedPrecondition, InvalidArgument):
            event("refused")
            assert not of.simple, "nothing in this template makes an append uncertain"
            return
        event("appended")
        assert appended == chat


ALIKE = {
    "system": st.just("in place"),
    "alternates": st.just(False),
    "counts": st.just(False),
    "last_closer": st.none(),
    "user_closer": st.just("<|end|>\\n"),
    "answer_closer": st.just("<|end|>\\n"),
}


@pytest.mark.slow
@fuzz
@given(
    of=traits(**ALIKE),
    before=messages(words, ("user", "assistant", "system"), 3),
    new=messages(words, ("user", "system"), 2),
)
def test_an_append_to_context_that_was_taken_in_is_the_whole_chat(
    of: Traits, before: list[Message], new: list[Message]
) -> None:
    template = of.template
    with rendering_at(MONDAY):
        context, chat = whole(template, before, generation_prompt=False), whole(template, [*before, *new])
        assert context is not None
        assert after_append(template, context, "", new) == chat


@pytest.mark.slow
@fuzz
@given(
    of=traits(),
    chat=messages(st.one_of(words, hostile), ("user", "assistant", "system"), 4),
    generation_prompt=st.booleans(),
)
def test_what_is_said_is_no_special_token(of: Traits, chat: list[Message], generation_prompt: bool) -> None:
    template = of.template
    harmless = [{**message, "content": "x"} for message in chat]
    with rendering_at(MONDAY):
        expected, plain = (
            whole(template, chat, generation_prompt=generation_prompt),
            whole(template, harmless, generation_prompt=generation_prompt),
        )
        try:
            rendered = renderer(template).messages(
                MessagesInput(tuple(chat)), generation_prompt=generation_prompt, parse_special=False
            )
        except InvalidArgument:
            assert expected is None
            return
        if expected is None:  # Another form of the chat is rendered than the template refuses.
            same_form = renderer(template).messages(
                MessagesInput(tuple(harmless)), generation_prompt=generation_prompt, parse_special=False
            )
            plain = same_form.text.decode()
        else:
            assert rendered.text.decode() == expected
    assert plain is not None
    token_ids = renderer(template).encode(rendered)
    assert tokenizer().decode(token_ids) == rendered.text
    wanted = [plain[start:end] for start, end in tokenizer().special_spans(plain)]
    assert [tokenizer().token_bytes(i).decode() for i in token_ids if i in tokenizer().special_ids] == wanted


BROKEN = [
    *("{% for m in messages %}{{ m.content", "{% for m in messages %}{{ m.content + 1 }}{% endfor %}"),
    *("{{ messages[7].content }}", "{{ messages.content.nothing }}", "{{ 1 / 0 }}", "{{ messages | nofilter }}"),
    *("{{ ''.__class__.__mro__ }}", "{{ strftime_now(7) }}"),
    *("{{ strftime_now('%') }}{{ raise_exception(messages) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    *("{{ range(10000000000) | list }}", "{{ 'x' * 3 ** 40 }}", "", "{{ none }}"),
]


@pytest.mark.parametrize("template", BROKEN)
def test_broken_templates_are_refused_or_render(template: str) -> None:
    chat = MessagesInput(({"role": "user", "content": "hello"},))
    for render in (
        partial(renderer(template).messages, chat),
        partial(renderer(template).continuation, Rendered(b"x"), chat),
    ):
        with suppress(FailedPrecondition, InvalidArgument):
            render(generation_prompt=True, parse_special=False)
