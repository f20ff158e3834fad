"""Messages are found again in what templates made of them."""

import pytest

from agentmem.v1.cache_store_pb2 import MessagePlace
from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput
from inference_service.text.prompt import message_places
from tests.inference_service.real_tokenizers import QWEN3_LIKE, STRIPS_THINKING, renderer


def chat(*messages: tuple[str, str]) -> MessagesInput:
    return MessagesInput(tuple({"role": role, "content": content} for role, content in messages))


def said(places: list[MessagePlace], added: bytes) -> list[tuple[str, str]]:
    size = len(added)
    spans = [(place.role, size - place.start_from_end, size - place.end_from_end) for place in places]
    return [(role, added[start:end].decode()) for role, start, end in spans]


EQUAL = (("system", "ok"), ("user", "ok"), ("assistant", "ok"), ("user", "ok é🙂"))


@pytest.mark.parametrize("template", [QWEN3_LIKE, STRIPS_THINKING])
def test_a_whole_chat_has_its_new_messages_in_what_is_added(template: str) -> None:
    text = renderer(template).messages(chat(*EQUAL), generation_prompt=True, parse_special=False).text
    assert said(message_places(chat(*EQUAL), b"", text, appended=False), text) == list(EQUAL)
    cut = text.index(b"assistant")
    assert said(message_places(chat(*EQUAL), text[:cut], text[cut:], appended=False), text[cut:]) == list(EQUAL[2:])
    inside = text.rindex(b"k")  # as where an edited message begins like the one before
    assert said(message_places(chat(*EQUAL), text[:inside], text[inside:], appended=False), text[inside:]) == [
        ("user", "k é🙂")
    ]


def test_what_is_appended_is_not_looked_for_in_what_was_there() -> None:
    before, added = b"<user>ok<end>", b"<user>ok<end><assistant>"
    for given in (chat(("user", "ok")), AppendInput(chat(("user", "ok")))):
        assert said(message_places(given, before, added, appended=True), added) == [("user", "ok")]


def test_what_is_appended_is_at_the_end_of_what_is_added() -> None:
    """Also after turns that the commit carries along, which may say the same."""
    added = b"<user>ok<end><assistant>yes<end><user>ok<end><tool>yes<end><assistant>"
    given = chat(("user", "ok"), ("tool", "yes"))
    places = message_places(given, b"<system>", added, appended=True)
    assert said(places, added) == [("user", "ok"), ("tool", "yes")]
    assert len(added) - places[0].start_from_end == added.rindex(b"ok")


def test_a_content_that_is_changed_or_left_out_has_no_place() -> None:
    given = chat(("user", " a \n"), ("assistant", "left out"), ("user", ""), ("user", "b"))
    added = b"<user>a<end><user>b<end>"
    assert said(message_places(given, b"", added, appended=True), added) == [("user", "a"), ("user", "b")]
    for other in (TextInput("a"), AppendInput(TextInput("a")), TokensInput((1,))):
        assert message_places(other, b"", b"a", appended=True) == []
