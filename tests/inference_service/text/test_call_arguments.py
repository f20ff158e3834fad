"""Calls reach each template with arguments that it renders, as an object or as text."""

from typing import Any

import pytest

from inference_service.domain import MessagesInput
from inference_service.text.call_arguments import with_text
from inference_service.text.template import Template
from tests.inference_service.real_tokenizers import CHATML, hugging_face

AS_TEXT = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + ':' + c.function.arguments }}{% endfor %}{% endfor %}"
)
EITHER = AS_TEXT.replace(" + c.function.arguments }}", " }}{{ c.function.arguments }}")
NO_CALLS = "{% for m in messages %}{{ m.content }}{% endfor %}"
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {"word": "Straße"}}}
CALLING: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("template", "spelled"),
    [
        (CHATML, '"arguments": {"word": "Straße"}'),
        (AS_TEXT, 'look_up:{"word": "Straße"}'),
        (EITHER, "look_up:{'word': 'Straße'}"),
        (NO_CALLS, "hello"),
    ],
)
def test_a_call_is_rendered(template: str, spelled: str) -> None:
    chat = MessagesInput(({"role": "user", "content": "hello"}, CALLING))
    assert spelled in Template(hugging_face(template).apply_chat_template).render(chat)
    assert CALL["function"] == {"name": "look_up", "arguments": {"word": "Straße"}}, "the message stays as it is"


def test_what_is_no_object_stays() -> None:
    odd: dict[str, Any] = {"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}, "x", {}]}
    assert with_text(odd) == odd
    assert with_text({"role": "user", "content": "x"}) == {"role": "user", "content": "x"}
