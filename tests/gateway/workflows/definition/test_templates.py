"""Templates: what they name, and what they are filled in with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition
from gateway.workflows.definition.templates import (
    MAX_FILLED,
    fill,
    fill_within_bounds,
    misspelled,
    outcome_text,
    references,
    spelled,
)

NAMED = st.lists(st.sampled_from(["${a}", "${b}", "word", "$", " "]), max_size=10).map("".join)


@given(NAMED, st.integers(0, MAX_FILLED), st.text(max_size=9))
def test_a_text_is_filled_in_if_it_is_not_too_long(text: str, length: int, short: str) -> None:
    values = {"a": "x" * length, "b": short}
    try:
        assert fill_within_bounds(text, values, "it") == fill(text, values)
    except FailedPrecondition:
        assert len(fill(text, values)) > MAX_FILLED
    else:
        assert len(fill(text, values)) <= MAX_FILLED


def test_what_is_too_long_is_named_and_not_quoted() -> None:
    assert len(fill_within_bounds("${a}", {"a": "x" * MAX_FILLED}, "the prompt of ann")) == MAX_FILLED
    with pytest.raises(FailedPrecondition) as caught:
        fill_within_bounds("${a}${a}", {"a": "secret" * (MAX_FILLED // 6)}, "the prompt of ann")
    assert caught.value.message.startswith("the prompt of ann would have more than")
    assert "secret" not in caught.value.message


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}(\.[a-zA-Z0-9 _-]{1,8}){0,3}", fullmatch=True)
PIECES = st.one_of(
    st.text(alphabet="$ {}ab.\n5é", max_size=6), NAMES.map(lambda name: f"${{{name}}}"), st.just("$${"), st.just("${")
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("$5, $ and $$", "$5, $ and $$"),
        ("${a}", "A"),
        ("${a}${a}{a}", "AA{a}"),
        ("$${a}", "${a}"),
        ("$$${a}", "$${a}"),
        ("$ ${a}", "$ A"),
        ("${p.plan B} ${a-b_c1}", "an option a name"),
        ("$a {a} #{a}", "$a {a} #{a}"),
    ],
)
def test_filling_in(text: str, filled: str) -> None:
    assert fill(text, {"a": "A", "p.plan B": "an option", "a-b_c1": "a name"}) == filled
    assert not misspelled(text)


@pytest.mark.parametrize(
    "text", ["${", "${}", "${bad name}", "${1a}", "${a", "${a.}", "${.a}", "${a..b}", "${é}", "${a\n}"]
)
def test_misspelled_text_cannot_be_filled_in(text: str) -> None:
    assert misspelled(f"ab {text}")
    assert references(text) == ()
    with pytest.raises(ValueError, match="Invalid"):
        fill(text, {})


def test_references_are_in_the_order_of_the_text() -> None:
    assert references("${b} $${no} ${a.x y} ${b}") == ("b", "a.x y", "b")


@given(st.lists(PIECES, max_size=8).map("".join))
def test_a_text_is_filled_in_just_if_all_that_it_names_is_there(text: str) -> None:
    values = dict.fromkeys(references(text), "V")
    if misspelled(text):
        return
    filled = fill(text, values)
    for name in values:
        with pytest.raises(KeyError):
            fill(text, {other: "" for other in values if other != name})
    # What is left as it is, is what stands between the references; an escape loses one $.
    assert filled.count("V") == len(references(text)) + text.count("V") - sum(
        name.count("V") for name in references(text)
    )


@given(st.text(max_size=50))
def test_values_are_filled_in_as_they_are(value: str) -> None:
    assert fill("<${a}>", {"a": value}) == f"<{value}>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (3.0, "3"),
        (-0.5, "-0.5"),
        (2.50, "2.5"),
        (1e300, "1e+300"),
        (0.1 + 0.2, "0.3"),
        (-0.0, "0"),
        (10**30, "1" + "0" * 30),
        ("None", "None"),
        (["é", 1], '["é", 1]'),
        ({"a": None}, '{"a": null}'),
    ],
)
def test_json_values_as_texts(value: object, text: str) -> None:
    assert spelled(value) == text


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("winner", "none"),
        ("tally.yes", "2"),
        ("tally.v1.0", "1"),
        ("tally.no", "none"),
        ("value.a.b", "true"),
        ("value.a", '{"b": true}'),
        ("value.a.b.c", "none"),
        ("other", "none"),
    ],
)
def test_fields_of_outcomes(field: str, text: str) -> None:
    outcome = {"winner": None, "tally": {"yes": 2, "v1.0": 1}, "value": {"a": {"b": True}}}
    assert outcome_text(outcome, field) == text
