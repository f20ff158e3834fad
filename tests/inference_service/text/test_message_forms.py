"""Messages that a template refuses as they are: it gets them in another form, and a chat keeps the beginning it had."""

from itertools import pairwise
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from inference_service.domain import MessagesInput
from inference_service.text.template import Template
from tests.inference_service.real_tokenizers import CHATML, hugging_face
from tests.trl_templates import template

USER, ANSWER = {"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}
FIRST, SECOND = {"role": "system", "content": "Be nice."}, {"role": "system", "content": "Be brief."}
NOTE = {"role": "system", "content": "The agents are: none."}

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
DROPS = PLAIN.replace("<{{", "{% if loop.first or m.role != 'system' %}<{{").replace("{% end", "{% endif %}{% end")
ALTERNATES = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role != 'system' or not loop.first %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) or m.role == 'system' %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
"""As Mistral's."""
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
ITEMS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}[{{ c.function.name }}"
    "{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}]{% endfor %}{% endfor %}"
)


def rendered(source: str, *messages: Any) -> str:
    return Template(hugging_face(source).apply_chat_template).render(MessagesInput(tuple(messages)))


@pytest.mark.parametrize(
    ("source", "messages", "text"),
    [
        (PLAIN, [FIRST, SECOND, USER, NOTE], "<system>Be nice.<system>Be brief.<user>go<system>The agents are: none."),
        (FIRST_ONLY, [FIRST, SECOND, USER], "<system>Be nice.\n\nBe brief.<user>go"),
        (FIRST_ONLY, [FIRST, USER, NOTE], "<system>Be nice.<user>go<user>The agents are: none."),
        (DROPS, [FIRST, USER, NOTE], "<system>Be nice.<user>go<user>The agents are: none."),
        (DROPS, [FIRST, SECOND, USER], "<system>Be nice.\n\nBe brief.<user>go"),
        (
            ALTERNATES,
            [FIRST, USER, NOTE, ANSWER, USER],
            "<system>Be nice.<user>go\n\nThe agents are: none.<assistant>done<user>go",
        ),
        (ALTERNATES, [USER, ANSWER, NOTE, USER], "<user>go<assistant>done<user>The agents are: none.\n\ngo"),
        (NO_SYSTEM, [FIRST, SECOND, USER, NOTE], "<user>Be nice.\n\nBe brief.\n\ngo\n\nThe agents are: none."),
        (NO_SYSTEM, [FIRST, ANSWER], "<user>Be nice.<assistant>done"),
    ],
)
def test_system_messages_become_what_the_template_takes(source: str, messages: list[Any], text: str) -> None:
    assert rendered(source, *messages) == text


CONVERSATION = [FIRST, SECOND, USER, NOTE, ANSWER, NOTE, USER, ANSWER, USER, NOTE, SECOND, ANSWER, USER]


@pytest.mark.parametrize("source", [PLAIN, FIRST_ONLY, DROPS, ALTERNATES, NO_SYSTEM])
def test_a_chat_that_goes_on_has_the_beginning_that_it_had(source: str) -> None:
    """Turn by turn: what was rendered when the model answered begins what is rendered later."""
    turns = [CONVERSATION[:end] for end in (4, 7, 11, 13)]
    texts = [rendered(source, *turn) for turn in turns]
    for one, other in pairwise(texts):
        assert other.startswith(one)


@pytest.mark.parametrize("name", ["qwen3_5_think", "qwen3_6", "qwen3_8"])
def test_published_templates_that_refuse(name: str) -> None:
    """Claude Code sends a system message after the first user's, Codex two developer messages."""
    source = template(name)
    for chat in ([FIRST, USER, NOTE, ANSWER, USER], [FIRST, SECOND, USER]):
        with pytest.raises(Exception, match="must be at the beginning"):
            hugging_face(source).apply_chat_template(chat, tokenize=False)
        text = rendered(source, *chat)
        assert all(str(message["content"]) in text for message in chat)


def test_many_system_messages_take_time_that_grows_with_the_text() -> None:
    """They took minutes where each was counted in all of the text."""
    notes = [{"role": "system", "content": f"note {number}"} for number in range(10_000)]
    text = rendered(ALTERNATES, {"role": "user", "content": "x" * 1_000_000}, *notes)
    assert text.count("note ") == 10_000


def test_what_no_form_helps_is_refused_as_the_template_says() -> None:
    with pytest.raises(InvalidArgument, match="never"):
        rendered("{{ raise_exception('never') }}", FIRST, USER)


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def test_arguments_that_are_no_object_are_text_where_the_template_cannot_take_them() -> None:
    assert rendered(ITEMS, USER, call({"a": 1})) == "<user>go<assistant>[look a=1]"
    assert rendered(ITEMS, USER, call('{"a": ')) == '<user>go<assistant>[look text={"a": ]'
    quoted = PLAIN.replace(
        "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}"
    )
    assert rendered(quoted, USER, call('{"a": ')) == '<user>go<assistant>{"a": '


AS_TEXT = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + ':' + c.function.arguments }}{% endfor %}{% endfor %}"
)
EITHER = AS_TEXT.replace(" + c.function.arguments }}", " }}{{ c.function.arguments }}")
NO_CALLS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "spelled"),
    [
        (CHATML, '"arguments": {"word": "Straße"}'),
        (AS_TEXT, 'look:{"word": "Straße"}'),
        (EITHER, "look:{'word': 'Straße'}"),
        (NO_CALLS, "hello"),
    ],
)
def test_a_call_is_rendered_with_an_object_or_as_text(source: str, spelled: str) -> None:
    calling = call({"word": "Straße"})
    assert spelled in rendered(source, FIRST, {"role": "user", "content": "hello"}, calling)
    assert calling == call({"word": "Straße"}), "the message stays as it is"


def test_what_is_no_call_stays() -> None:
    odd: dict[str, Any] = {"role": "assistant", "content": "x", "tool_calls": [{"function": {}}, "x", {}]}
    assert rendered(NO_CALLS, odd) == "x"
