from hypothesis import given
from hypothesis import strategies as st

from gateway.api.responses import RESPONSE_PREFIX, is_response_id, number_of_key


@given(st.text(min_size=1, max_size=60))
def test_what_is_no_id(text: str) -> None:
    whole = RESPONSE_PREFIX + number_of_key("k")
    assert is_response_id(whole)
    assert not any(map(is_response_id, (text, whole + text, text + whole, whole[:-1])))


def test_keys_have_numbers_of_their_own() -> None:
    assert number_of_key("a") == number_of_key("a") != number_of_key("b")
