from hypothesis import given
from hypothesis import strategies as st

from gateway.api.responses import Beginning, beginning_of, number_of_key, response_id


@given(st.text(), st.text())
def test_an_id_tells_what_its_turn_began_with(instructions: str, tools: str) -> None:
    beginning = Beginning.of(instructions, tools)
    identifier = response_id(number_of_key("k"), beginning)
    assert beginning_of(identifier) == beginning
    assert identifier.removeprefix("resp_").isalnum() and len(identifier) == 5 + 48


def test_beginnings_differ() -> None:
    texts = ("", "be nice", "be nice ", "[]")
    assert len({Beginning.of(text, "") for text in texts}) == len(texts)
    one = Beginning.of("a", "a")
    assert one.instructions != one.tools


@given(st.text(min_size=1, max_size=60))
def test_what_is_no_id(text: str) -> None:
    whole = response_id("0" * 32, Beginning.of("", ""))
    assert [beginning_of(other) for other in (text, whole + text, text + whole, whole[:-1])] == [None] * 4


def test_keys_have_numbers_of_their_own() -> None:
    assert number_of_key("a") == number_of_key("a") != number_of_key("b")
