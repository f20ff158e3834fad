"""Outcomes, read from what was said."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import jsontext
from gateway.workflows import outcomes, run
from gateway.workflows.program import PhaseEnd
from tests.gateway.workflows.files import phase

YES_NO = {"kind": "vote", "options": ["yes", "no"]}


def read(outcome: dict[str, Any], said: dict[str, str], agents: str = "abc") -> dict[str, Any]:
    asked = phase(agents=list(agents), outcome=outcome)
    assert asked.outcome is not None
    return outcomes.read(asked.outcome, asked, said)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I COOPERATE.", "cooperate"),
        ("Not defect: cooperate!", "cooperate"),
        ("cooperate? I defect", "defect"),
        ("cooperation, defection", None),
        ("", None),
        ('"defect"', "defect"),
        ("co-operate with the defect_ion", None),
    ],
)
def test_the_last_option_that_is_named_counts(text: str, expected: str | None) -> None:
    options = {"kind": "choice", "options": ["cooperate", "defect"]}
    assert read(options, {"a": text}, "a") == {"choices": {"a": expected}}


def test_of_options_that_end_together_the_longer_is_meant() -> None:
    options = {"kind": "choice", "options": ["do not sign", "sign", "C++"]}
    assert read(options, {"a": "I do not sign", "b": "I sign", "c": "c++, then"})["choices"] == {
        "a": "do not sign",
        "b": "sign",
        "c": "C++",
    }


@pytest.mark.parametrize(
    ("said", "tie", "winner", "tally", "unanimous"),
    [
        ("yes yes no", "none", "yes", (2, 1), False),
        ("yes yes yes", "none", "yes", (3, 0), True),
        ("yes no -", "none", None, (1, 1), False),
        ("yes no -", "first", "yes", (1, 1), False),
        ("no yes -", "first", "yes", (1, 1), False),
        ("- - -", "first", None, (0, 0), False),
        ("yes yes -", "none", "yes", (2, 0), False),
    ],
)
def test_a_vote(said: str, tie: str, winner: str | None, tally: tuple[int, int], unanimous: bool) -> None:
    votes = dict(zip("abc", said.split(), strict=True))
    result = read({**YES_NO, "tie": tie}, votes)
    assert result == {
        "winner": winner,
        "tally": {"yes": tally[0], "no": tally[1]},
        "votes": {name: vote if vote != "-" else None for name, vote in votes.items()},
        "unanimous": unanimous,
    }


def test_only_voters_vote() -> None:
    assert read({**YES_NO, "voters": ["c"]}, {"a": "yes", "b": "yes", "c": "no"})["winner"] == "no"


def test_numbers_and_their_mean() -> None:
    said = {"a": "I say 3, no: -4.5", "b": "v2.0.1 is not one, 10%", "c": "none"}
    assert read({"kind": "number"}, said) == {"numbers": {"a": -4.5, "b": 10, "c": None}, "mean": 2.75}
    assert read({"kind": "number", "agents": ["c"]}, said) == {"numbers": {"c": None}, "mean": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"fix": [1]}', {"fix": [1]}),
        ('{"fix": [1', None),
        ("[]", None),
        ("[" * 100_000, None),
        ("", None),
        ('{"x": NaN}', None),
        ('{"x": [-Infinity]}', None),
        ('{"x": 1e400}', None),
        ('{"x": "\\ud800"}', None),
        ('{"\\udfff": 1}', None),
    ],
    ids=["object", "cut off", "array", "deep", "nothing", "nan", "inf", "overflow", "surrogate", "surrogate key"],
)
def test_an_object(text: str, value: Any) -> None:
    assert read({"kind": "json", "agent": "a", "schema": {"type": "object"}}, {"a": text}) == {"value": value}


def test_a_text() -> None:
    assert read({"kind": "text", "agent": "b"}, {"a": "no", "b": "this"}) == {"text": "this"}
    assert read({"kind": "text", "agent": "b"}, {}) == {"text": None}


def test_who_is_held_to_what() -> None:
    schema = {"type": "object", "title": "é"}
    held = phase(agents=["a", "b"], outcome={**YES_NO, "voters": ["a"], "held": True})
    free = phase(agents=["a", "b"], outcome=YES_NO)
    made = phase(agents=["a", "b"], outcome={"kind": "json", "agent": "b", "schema": schema})
    assert json.loads(outcomes.held_to(held.outcome, held, "a")) == {"type": "string", "enum": ["yes", "no"]}
    assert outcomes.held_to(made.outcome, made, "b") == '{"type": "object", "title": "é"}'
    assert [
        outcomes.held_to(held.outcome, held, "b"),
        outcomes.held_to(free.outcome, free, "a"),
        outcomes.held_to(made.outcome, made, "a"),
        outcomes.held_to(None, free, "a"),
    ] == [""] * 4


def test_a_number_that_is_not_finite_is_none() -> None:
    said = {"a": "9" * 400, "b": "-" + "9" * 400, "c": "7"}
    assert read({"kind": "number"}, said) == {"numbers": {"a": None, "b": None, "c": 7}, "mean": 7}


def test_a_mean_is_finite_where_the_sum_is_not() -> None:
    huge = "1" + "0" * 308
    assert read({"kind": "number"}, {"a": huge, "b": huge, "c": "0.5"})["mean"] == pytest.approx(2 / 3 * 1e308)


HOSTILE = st.one_of(
    st.text(),
    st.sampled_from(["9" * 400, "-1e999", '{"x": Infinity}', '{"x": NaN}', '{"x": 1e400}', '{"x": "\\ud800"}']),
    st.integers(55, 70).map(lambda depth: '{"x":' * depth + "1" + "}" * depth),
    st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner)).map(json.dumps),
)


@given(HOSTILE, st.sampled_from([YES_NO, {"kind": "number"}, {"kind": "json", "agent": "a", "schema": {}}]))
def test_every_outcome_is_json_that_readers_take(text: str, outcome: dict[str, Any]) -> None:
    result = read(outcome, {"a": text, "b": "1e5", "c": "yes"})
    told = run._outcome(PhaseEnd("p", result, 1)).phase_outcome.outcome_json
    assert jsontext.parse("outcome", told, dict) == result


@pytest.mark.parametrize(("depth", "taken"), [(63, True), (64, False), (900, False), (5000, False)])
def test_an_object_is_no_deeper_than_readers_take_it(depth: int, taken: bool) -> None:
    result = read({"kind": "json", "agent": "a", "schema": {}}, {"a": '{"x":' * depth + "1" + "}" * depth})
    assert (result["value"] is not None) == taken
