import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition
from gateway.workflows.definition.templates import fill
from gateway.workflows.filling import MAX_FILLED, filled

PIECES = st.lists(st.sampled_from(["${a}", "${b}", "word", "$", " "]), max_size=10).map("".join)


@given(PIECES, st.integers(0, MAX_FILLED), st.text(max_size=9))
def test_a_text_is_filled_in_if_it_is_not_too_long(text: str, length: int, short: str) -> None:
    values = {"a": "x" * length, "b": short}
    try:
        assert filled(text, values, "it") == fill(text, values)
    except FailedPrecondition:
        assert len(fill(text, values)) > MAX_FILLED
    else:
        assert len(fill(text, values)) <= MAX_FILLED


def test_what_is_too_long_is_named_and_not_quoted() -> None:
    assert len(filled("${a}", {"a": "x" * MAX_FILLED}, "the prompt of ann")) == MAX_FILLED
    with pytest.raises(FailedPrecondition) as caught:
        filled("${a}${a}", {"a": "secret" * (MAX_FILLED // 6)}, "the prompt of ann")
    assert caught.value.message.startswith("the prompt of ann would have more than")
    assert "secret" not in caught.value.message
