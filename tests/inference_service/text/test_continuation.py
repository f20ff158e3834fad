"""An `append` adds what the whole chat has, wherever the template renders earlier turns the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Ledger
from agentmem.v1 import types_pb2
from inference_service.domain import MessagesInput
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Plan, Planner
from inference_service.text.prompt import Rendered, Span
from tests.inference_service.chat_templates import (
    APERTUS,
    COMMAND,
    FAMILIES,
    GLM,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    PHI,
    Family,
    model,
)
from tests.inference_service.real_tokenizers import (
    ALTERNATING,
    BOS,
    CHATML,
    END,
    QWEN3_LIKE,
    START,
    STRICT_ROLES,
    STRIPS_THINKING,
    renderer,
)
from tests.inference_service.text.test_rendering import (
    BOS_ID,
    END_ID,
    START_ID,
    TOKENIZER,
    chat,
    chats,
    hostile,
    plain,
    plain_rendering,
)

Message = dict[str, Any]

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi there"}
NEXT = {"role": "user", "content": "and now?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "sea"}}}],
}
RESULT = {"role": "tool", "name": "look", "tool_call_id": "call00001", "content": "it is blue"}

WRITES = {
    GLM: "hi there",
    APERTUS: "hi there",
    GPT_OSS: "<|channel|>final<|message|>hi there",
    PHI: "hi there",
    COMMAND: "<|START_RESPONSE|>hi there<|END_RESPONSE|>",
    MISTRAL: "hi there",
    LLAMA: "hi there",
}
"""How a model of the family writes `ANSWER`, before it stops."""
STOPS = {
    GLM: ("<|user|>", "<|endoftext|>", "<|observation|>"),
    APERTUS: ("<|assistant_end|>", "</s>"),
    GPT_OSS: ("<|return|>", "<|endoftext|>"),
    PHI: ("<|end|>", "<|endoftext|>"),
    COMMAND: ("<|END_OF_TURN_TOKEN|>",),
    MISTRAL: ("</s>",),
    LLAMA: ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
}
CALLING = {
    GLM: '\n<tool_call>look\n{"at": "sea"}</tool_call><|observation|>',
    APERTUS: '<|tools_prefix|>[{"name": "look", "arguments": {"at": "sea"}}]<|tools_suffix|>',
    GPT_OSS: ' to=functions.look<|channel|>commentary json<|message|>{"at": "sea"}<|call|>',
    COMMAND: '<|START_ACTION|>[{"name": "look", "arguments": {"at": "sea"}}]<|END_ACTION|><|END_OF_TURN_TOKEN|>',
    MISTRAL: '[TOOL_CALLS][{"name": "look", "arguments": {"at": "sea"}}]</s>',
    LLAMA: '{"name": "look", "arguments": {"at": "sea"}}<|eom_id|>',
}
"""How it writes `CALLS`, and stops."""


def appended(family: Family, prompt: str, generated: str, *messages: Message) -> tuple[str, Plan]:
    """All that the model sees after an append to a ledger of a prompt and what was generated, and the plan."""
    of = model(family)
    planner = Planner(of.tokenizer, of.renderer, MatchLimits())
    ledger = Ledger()
    for text in (prompt, generated):
        ids = of.tokenizer.encode(text, parse_special=True)
        ledger = ledger.followed_by(
            ids, of.tokenizer.pieces(ids), of.tokenizer.hash, len(ids) if text is generated else 0
        )
    before = Rendered(ledger.text, tuple(planner.specials(ledger)))
    kept, addition = of.renderer.continuation(
        before,
        MessagesInput(messages),
        generation_prompt=True,
        parse_special=False,
        answered=ledger.ends_with_an_answer,
    )
    plan = planner.for_append(ledger, addition, kept)
    return of.tokenizer.decode(plan.sequence).decode(), plan


def added(template: str, ledger: Rendered, new: MessagesInput, *, generation_prompt: bool = True) -> Rendered:
    """Return the addition to a ledger that stays."""
    kept, addition = renderer(template).continuation(
        ledger, new, generation_prompt=generation_prompt, parse_special=False
    )
    assert kept == len(ledger.text)
    return addition


ENDINGS = [
    pytest.param(family, stop, id=f"{family} {stop or 'cut'}") for family in FAMILIES for stop in ("", *STOPS[family])
]
"""Families with each stop token; "" where max_tokens or a stop string cut it."""


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_stop_tokens_that_history_does_not_have(family: Family) -> None:
    of = model(family)
    kept = {"<|user|>", "<|observation|>", "<|assistant_end|>", "<|tools_suffix|>", "<|call|>", "<|end|>", "<|eot_id|>"}
    kept |= {"<|END_OF_TURN_TOKEN|>"} | ({"</s>"} if family is MISTRAL else set())
    spelled = {of.tokenizer.token_bytes(stop).decode() for stop in of.renderer.transient_stops}
    assert spelled == set(family.stops) - kept


@pytest.mark.parametrize(
    "template", [None, "{{ raise_exception('no') }}", STRIPS_THINKING], ids=["none", "no", "ChatML"]
)
def test_none_is_left_out_where_history_has_it_or_cannot_be_seen(template: str | None) -> None:
    assert renderer(template).transient_stops == frozenset()


@pytest.mark.parametrize(("family", "stop"), ENDINGS)
@pytest.mark.parametrize(
    "new",
    [(NEXT,), (NEXT, ANSWER, USER), (SYSTEM, NEXT), (ANSWER, NEXT)],
    ids=["user", "several", "system", "another answer"],
)
def test_an_append_is_the_whole_chat(family: Family, stop: str, new: tuple[Message, ...]) -> None:
    whole = model(family).whole([USER, ANSWER, *new])
    text, plan = appended(family, model(family).whole([USER]), WRITES[family] + stop, *new)
    assert text == whole
    stays = whole.startswith(model(family).whole([USER]) + WRITES[family] + stop)
    assert plan.kind == (types_pb2.MATCH_EXTEND if stays else types_pb2.MATCH_PARTIAL)


@pytest.mark.parametrize("family", CALLING, ids=str)
@pytest.mark.parametrize("new", [(RESULT,), (RESULT, ANSWER, NEXT)], ids=["result", "and more"])
def test_results_of_tools_follow_their_call(family: Family, new: tuple[Message, ...]) -> None:
    text, _ = appended(family, model(family).whole([USER]), CALLING[family], *new)
    assert text == model(family).whole([USER, CALLS, *new])


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize(
    "before",
    [(USER, ANSWER), (SYSTEM,), (SYSTEM, USER)],
    ids=["after an answer", "after a system message", "after a user"],
)
def test_an_append_to_context_that_was_taken_in(family: Family, before: tuple[Message, ...]) -> None:
    new = (ANSWER, NEXT) if before[-1] is USER else (NEXT,)
    text, _ = appended(family, model(family).whole([*before], generation_prompt=False), "", *new)
    assert text == model(family).whole([*before, *new])


def test_a_turn_after_a_call_that_no_tool_answered() -> None:
    for family in (COMMAND, APERTUS, GPT_OSS):
        text, plan = appended(family, model(family).whole([USER]), CALLING[family], NEXT)
        assert text == model(family).whole([USER, CALLS, NEXT])
        assert plan.kind == types_pb2.MATCH_EXTEND


def test_white_space_of_an_answer_is_no_end_of_its_turn() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ '\\n\\n' }}{% endfor %}"
    text = added(template, remembered("hello\n\nhi\n"), chat(("user", "and now?")), generation_prompt=False).text
    assert text == b"\n\nand now?\n\n"


def test_a_call_that_was_cut_is_ended() -> None:
    text, _ = appended(COMMAND, COMMAND.specials[0], '<|START_ACTION|>[{"name": "lo', RESULT)
    assert text.startswith('<BOS_TOKEN><|START_ACTION|>[{"name": "lo<|END_ACTION|><|END_OF_TURN_TOKEN|><|START_OF_TURN')


def test_a_tool_whose_name_is_rendered_has_to_be_named() -> None:
    unnamed = {name: value for name, value in RESULT.items() if name != "name"}
    with pytest.raises(FailedPrecondition, match="name of the tool"):
        appended(GPT_OSS, model(GPT_OSS).whole([USER]), CALLING[GPT_OSS], unnamed)


def test_what_the_template_refuses_behind_an_answer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="must alternate"):
        appended(MISTRAL, model(MISTRAL).whole([USER]), "hi there</s>", NEXT, NEXT)


def test_an_eos_that_was_given_as_text_stays() -> None:
    text, plan = appended(PHI, "a document<|endoftext|>", "", NEXT)
    assert text.startswith("a document<|endoftext|><|end|>\n<|user|>\n")
    assert plan.kind == types_pb2.MATCH_EXTEND


def test_the_answer_of_the_stub_may_be_said() -> None:
    said = {"role": "user", "content": "the answer of the stub"}
    text, _ = appended(GLM, model(GLM).whole([USER]), "hi there<|user|>", said, ANSWER, said)
    assert text == model(GLM).whole([USER, ANSWER, said, ANSWER, said])


HOISTS = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
"""As DeepSeek V3's."""
ROUNDS = "{% for m in messages %}[Round {{ loop.index }}]{{ m.content }}<|im_end|>{% endfor %}"
"""As ChatGLM 2's."""
NO_ANSWERS = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("template", [HOISTS, ROUNDS, NO_ANSWERS], ids=["hoists", "counts", "no answers"])
def test_an_addition_that_cannot_be_known_is_refused(template: str) -> None:
    with pytest.raises(FailedPrecondition, match="send the whole chat"):
        added(template, remembered("x"), chat(("system", "y"), ("user", "z")), generation_prompt=False)


def test_an_end_of_turn_only_at_the_end() -> None:
    template = "{% for m in messages %}{{ m.content }}{% if loop.last %}<|im_end|>{% endif %}{% endfor %}"
    of = renderer(template)
    for ledger, kept in (("x", 1), ("x" + END, 1)):
        found = of.continuation(remembered(ledger), chat(("user", "y")), generation_prompt=False, parse_special=False)
        assert found == (kept, remembered("y" + END))


# By one template.


def remembered(text: str, *, literal: bool = False) -> Rendered:
    spans = [] if literal else list(TOKENIZER.special_spans(text))
    starts = [len(text[:start].encode()) for start, _ in spans]
    return Rendered(
        text.encode(), tuple(Span(at, at + b - a) for at, (a, b) in zip(starts, spans, strict=True)), literal=literal
    )


@pytest.mark.parametrize("template", [CHATML, STRIPS_THINKING, STRICT_ROLES, ALTERNATING])
@given(first=plain.filter(bool), content=plain, generation_prompt=st.booleans())
def test_continuation_is_the_difference(template: str, first: str, content: str, generation_prompt: bool) -> None:
    history = chat(("user", first), ("assistant", "hi there"))
    new = chat(("user", content))
    before = plain_rendering(history, template, generation_prompt=False)
    after = plain_rendering(
        MessagesInput((*history.messages, *new.messages)), template, generation_prompt=generation_prompt
    )
    addition = added(template, remembered(before), new, generation_prompt=generation_prompt)
    assert before + addition.text.decode() == after


_SAID = f"{BOS}{START}assistant\nhi"


@pytest.mark.parametrize(
    ("template", "ledger", "missing"),
    [
        *((CHATML, remembered(f"{_SAID}{END}\n".removesuffix(lost)), lost) for lost in (f"{END}\n", "\n", "")),
        *((CHATML, remembered(f"{_SAID}{END[:size]}"), f"{END}\n") for size in range(1, len(END))),
        *((CHATML, remembered(_SAID) + remembered(tail, literal=True), f"{END}\n") for tail in (END, f"{END}\n")),
        (CHATML, Rendered(b"hi \xf0\x9f"), f"{END}\n"),
        (QWEN3_LIKE, remembered(f"{START}assistant\n<think>\n\n</think>\n\nhi"), f"{END}\n"),
    ],
    ids=[
        *("without its end", "without the line's end", "whole"),
        *(f"{END[:size]} is no part of the end" for size in range(1, len(END))),
        *("a look-alike", "a look-alike and a line's end", "half a character", "a template that rewrites answers"),
    ],
)
def test_an_end_of_turn_is_added_as_far_as_it_is_missing(template: str, ledger: Rendered, missing: str) -> None:
    addition = added(template, ledger, chat(("user", "next")))
    assert addition.text.decode() == f"{missing}{START}user\nnext{END}\n{START}assistant\n"
    assert renderer().encode(addition).count(END_ID) == 1 + missing.count(END)


@given(chat=chats(hostile))
def test_continuation_keeps_look_alikes_ordinary_and_adds_no_bos(chat: MessagesInput) -> None:
    ledger = remembered(f"{BOS}{START}assistant\nhi")
    addition = added(CHATML, ledger, chat)
    token_ids = renderer().encode(addition)
    assert BOS_ID not in token_ids
    assert sum(token in TOKENIZER.special_ids for token in token_ids) == 1 + 2 * len(chat.messages) + 1
    assert TOKENIZER.decode(token_ids) == addition.text
    assert [token for token in token_ids if token in TOKENIZER.special_ids][:2] == [END_ID, START_ID]


def test_continuation_of_nothing_is_the_whole_chat() -> None:
    new = chat(("user", "x"))
    whole = renderer().messages(new, generation_prompt=True, parse_special=False)
    assert renderer().continuation(Rendered(b""), new, generation_prompt=True, parse_special=False) == (0, whole)
