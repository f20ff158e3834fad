"""Outcomes, read from what was said."""

import json
from typing import Any

import pytest

from gateway.workflows import outcomes
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
    [('{"fix": [1]}', {"fix": [1]}), ('{"fix": [1', None), ("[]", None), ("[" * 100_000, None), ("", None)],
    ids=["object", "cut off", "array", "deep", "nothing"],
)
def test_an_object(text: str, value: Any) -> None:
    assert read({"kind": "json", "agent": "a", "schema": {"type": "object"}}, {"a": text}) == {"value": value}


def test_a_text() -> None:
    assert read({"kind": "text", "agent": "b"}, {"a": "no", "b": "this"}) == {"text": "this"}
    assert read({"kind": "text", "agent": "b"}, {}) == {"text": None}


def test_who_is_held_to_what() -> None:
    schema = {"type": "object"}
    held = phase(agents=["a", "b"], outcome={**YES_NO, "voters": ["a"], "held": True})
    free = phase(agents=["a", "b"], outcome=YES_NO)
    made = phase(agents=["a", "b"], outcome={"kind": "json", "agent": "b", "schema": schema})
    assert json.loads(outcomes.held_to(held.outcome, held, "a")) == {"type": "string", "enum": ["yes", "no"]}
    assert json.loads(outcomes.held_to(made.outcome, made, "b")) == schema
    assert [
        outcomes.held_to(held.outcome, held, "b"),
        outcomes.held_to(free.outcome, free, "a"),
        outcomes.held_to(made.outcome, made, "a"),
        outcomes.held_to(None, free, "a"),
    ] == [""] * 4


def test_values_for_templates() -> None:
    result = {"winner": None, "tally": {"yes": 2}, "unanimous": False, "mean": 2.50, "text": 'a "b"', "list": [1]}
    assert outcomes.values("p", result) == {
        "outcome.p.winner": "none",
        "outcome.p.tally": '{"yes": 2}',
        "outcome.p.tally.yes": "2",
        "outcome.p.unanimous": "false",
        "outcome.p.mean": "2.5",
        "outcome.p.text": 'a "b"',
        "outcome.p.list": "[1]",
    }
