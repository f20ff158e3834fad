import json
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition, InvalidArgument
from inference_service.domain import MessagesInput
from inference_service.text.prompt import Rendered, Span
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import (
    ALTERNATING,
    BOS,
    CHATML,
    END,
    SPECIALS,
    START,
    STRICT_ROLES,
    byte_level,
    byte_level_backend,
    byte_level_with_bos,
    hugging_face,
    renderer,
    sentence_piece,
)

TOKENIZER = byte_level_with_bos()
BOS_ID, START_ID, END_ID = (TOKENIZER.special_id(text) for text in SPECIALS)
NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

plain = st.text(alphabet=st.sampled_from("ab é🙂\n<|>"), max_size=12)
hostile = st.lists(
    st.one_of(plain, st.sampled_from([*SPECIALS, "<|im_", "start|>", NONCHARACTERS[0], NONCHARACTERS[1]])), max_size=5
).map("".join)


def chats(text: st.SearchStrategy[str]) -> st.SearchStrategy[MessagesInput]:
    """Chats whose every string, keys in tool calls and tools included, is `text`."""
    call = st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {"name": text, "arguments": st.dictionaries(text, st.lists(text, max_size=2))}
            )
        }
    )
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": text},
        optional={"name": text, "tool_calls": st.lists(call, max_size=2)},
    )
    tool = st.fixed_dictionaries({"name": text, "parameters": st.dictionaries(text, text, max_size=2)})
    return st.builds(
        MessagesInput, st.lists(message, min_size=1, max_size=3).map(tuple), st.lists(tool, max_size=1).map(tuple)
    )


def plain_rendering(chat: MessagesInput, template: str = CHATML, *, generation_prompt: bool = True) -> str:
    return str(
        hugging_face(template).apply_chat_template(
            [dict(m) for m in chat.messages],
            tools=[dict(t) for t in chat.tools] or None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **chat.template_arguments,
        )
    )


def chat(*messages: tuple[str, str]) -> MessagesInput:
    return MessagesInput(tuple({"role": role, "content": content} for role, content in messages))


@given(chat=chats(hostile), generation_prompt=st.booleans())
def test_user_text_never_becomes_a_special_token(chat: MessagesInput, generation_prompt: bool) -> None:
    rendered = renderer().messages(chat, generation_prompt=generation_prompt, parse_special=False)
    assert rendered.text.decode() == plain_rendering(chat, generation_prompt=generation_prompt), (
        "the text is the template's, without any mark"
    )
    of_the_template = 1 + 2 * len(chat.messages) + generation_prompt
    assert len(rendered.specials) == of_the_template
    token_ids = renderer().encode(rendered)
    assert sum(token in TOKENIZER.special_ids for token in token_ids) == of_the_template
    assert TOKENIZER.decode(token_ids) == rendered.text
    assert [rendered.text[s.start : s.end].decode() for s in rendered.specials] == [
        TOKENIZER.token_bytes(token).decode() for token in token_ids if token in TOKENIZER.special_ids
    ]


@given(chat=chats(plain), generation_prompt=st.booleans())
def test_tokens_are_those_of_transformers(chat: MessagesInput, generation_prompt: bool) -> None:
    rendered = renderer().messages(chat, generation_prompt=generation_prompt, parse_special=False)
    expected = hugging_face(CHATML).apply_chat_template(
        [dict(m) for m in chat.messages],
        tools=[dict(t) for t in chat.tools] or None,
        add_generation_prompt=generation_prompt,
        tokenize=True,
        return_dict=False,
    )
    assert renderer().encode(rendered) == expected


@given(chat=chats(hostile))
def test_special_tokens_in_user_text_are_parsed_when_asked(chat: MessagesInput) -> None:
    rendered = renderer().messages(chat, generation_prompt=True, parse_special=True)
    text = plain_rendering(chat)
    assert rendered.text.decode() == text
    assert renderer().encode(rendered) == TOKENIZER.encode(text, parse_special=True)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ({"role": f"user{END}"}, {}),
        ({"tool_calls": [{"arguments": json.dumps({"a": END})}]}, {}),
        ({"tool_calls": [{"arguments": {"a": [{f"k{END}": {}}]}}]}, {}),
        ({}, {"extra": END}),
    ],
    ids=["role", "arguments as text", "nested key", "template's argument"],
)
def test_look_alikes_where_no_chat_of_the_properties_has_them(message: Any, arguments: dict[str, Any]) -> None:
    """For contents, names, tools and arguments see test_user_text_never_becomes_a_special_token."""
    template = CHATML + "{{ extra }}"
    given_chat = MessagesInput(({"role": "user", "content": "x", **message},), (), arguments)
    rendered = renderer(template).messages(given_chat, generation_prompt=False, parse_special=False)
    assert rendered.text.decode() == plain_rendering(given_chat, template, generation_prompt=False)
    token_ids = renderer(template).encode(rendered)
    assert (rendered.text.count(END.encode()), token_ids.count(END_ID)) == (2, 1)
    assert TOKENIZER.decode(token_ids) == rendered.text


def test_look_alikes_that_overlap() -> None:
    backend = byte_level_backend(bos=True)
    backend.add_special_tokens(["<<a>>", ">>b<<"])
    tokenizer = Tokenizer(backend, [])
    overlapping = Renderer(tokenizer, hugging_face(CHATML).apply_chat_template)
    rendered = overlapping.messages(chat(("user", "x<<a>>b<<y")), generation_prompt=False, parse_special=False)
    assert len(rendered.specials) == 3
    assert sum(token in tokenizer.special_ids for token in overlapping.encode(rendered)) == 3


@pytest.mark.parametrize("free", [0, 17, len(NONCHARACTERS) - 1])
def test_one_free_mark_is_enough(free: int) -> None:
    taken = "".join(mark for i, mark in enumerate(NONCHARACTERS) if i != free)
    rendered = renderer().messages(chat(("user", f"{taken}{END}")), generation_prompt=False, parse_special=False)
    assert rendered.text.decode() == f"{BOS}{START}user\n{taken}{END}{END}\n"
    assert renderer().encode(rendered).count(END_ID) == 1


def test_no_free_mark() -> None:
    everything = "".join(NONCHARACTERS)
    with pytest.raises(InvalidArgument) as caught:
        renderer().messages(chat(("user", everything + END)), generation_prompt=False, parse_special=False)
    assert caught.value.field == "messages"
    rendered = renderer().messages(chat(("user", everything)), generation_prompt=False, parse_special=False)
    assert everything in rendered.text.decode()


@given(text=hostile, parse_special=st.booleans())
def test_raw_text_has_one_bos_unless_it_is_appended(text: str, parse_special: bool) -> None:
    for appended in (False, True):
        rendered = (renderer().appended_text if appended else renderer().text)(text, parse_special=parse_special)
        expected = text if appended or (parse_special and text.startswith(BOS)) else BOS + text
        assert rendered.text.decode() == expected
        token_ids = renderer().encode(rendered)
        assert TOKENIZER.decode(token_ids) == rendered.text
        if parse_special:
            assert token_ids == TOKENIZER.encode(expected, parse_special=True)
        else:
            assert [t for t in token_ids if t in TOKENIZER.special_ids] == [BOS_ID][appended:]


def test_no_bos_where_the_tokenizer_adds_none() -> None:
    bare = Renderer(byte_level(), None)
    assert bare.text("abc", parse_special=False) == Rendered(b"abc")
    assert bare.text(END, parse_special=False) == Rendered(END.encode(), literal=True)
    assert bare.text(END, parse_special=True) == Rendered(END.encode(), (Span(0, len(END)),))


@given(chat=chats(hostile), data=st.data())
def test_encoding_may_begin_at_any_special_token(chat: MessagesInput, data: st.DataObject) -> None:
    rendered = renderer().messages(chat, generation_prompt=True, parse_special=False)
    span = data.draw(st.sampled_from(rendered.specials))
    assert TOKENIZER.decode(renderer().encode(rendered, span.start)) == rendered.text[span.start :]
    whole = renderer().encode(rendered)
    assert whole[-len(renderer().encode(rendered, span.end)) :] == renderer().encode(rendered, span.end)


def test_only_the_beginning_of_an_addition_goes_on() -> None:
    tokenizer = sentence_piece()
    of = Renderer(tokenizer, None)
    parsed = of.appended_text("s</s>t", parse_special=True)
    mixed = parsed + of.appended_text("<s>", parse_special=False)
    for rendered, text in ((parsed, "s</s> t"), (mixed, "s</s> t<s>")):
        assert tokenizer.decode(of.encode(rendered, continues=True)).decode() == text
        assert tokenizer.decode(of.encode(rendered)).decode() == f" {text}"


def test_sum_of_renderings() -> None:
    a, b = Rendered(b"ab", (Span(0, 2),)), Rendered(b"cde", (Span(1, 3),), literal=True)
    assert a + b == Rendered(b"abcde", (Span(0, 2), Span(3, 5)), literal=True)


# Templates that refuse.


@pytest.mark.parametrize(
    ("template", "refused", "problem"),
    [
        (STRICT_ROLES, chat(("wizard", "x")), "unknown role wizard"),
        (ALTERNATING, chat(("user", "x"), ("user", "y")), "must alternate"),
        (CHATML, MessagesInput(({"role": "user", "content": "x"},), (), {"self": 1}), "self"),
        ("{{ messages[0].nothing.at_all }}", chat(("user", "x")), "nothing"),
        ("{{ 1 // count }}", MessagesInput(({"role": "user", "content": "x"},), (), {"count": 0}), "zero"),
        ("{{ [1][count] | int + 'x' }}", MessagesInput(({"role": "user", "content": "x"},), (), {"count": 0}), "int"),
    ],
)
def test_what_the_template_refuses_is_a_bad_argument(template: str, refused: MessagesInput, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as caught:
        renderer(template).messages(refused, generation_prompt=True, parse_special=False)
    assert caught.value.field == "messages"


def test_what_the_sandbox_refuses_is_a_bad_argument() -> None:
    def template(*_: Any, **__: Any) -> str:
        raise jinja2.exceptions.SecurityError("no")

    with pytest.raises(InvalidArgument, match="refuses"):
        Renderer(TOKENIZER, template).messages(chat(("user", "x")), generation_prompt=True, parse_special=False)


def test_no_template() -> None:
    with pytest.raises(FailedPrecondition, match="no chat template"):
        renderer(None).messages(chat(("user", "x")), generation_prompt=True, parse_special=False)
