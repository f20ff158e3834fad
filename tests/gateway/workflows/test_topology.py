"""Topologies say who speaks when, to whom, and who hears it; schedules say how far each next turn is."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workflows.definition.schema import Phase
from gateway.workflows.topology import (
    Audience,
    Speech,
    addressees,
    audience,
    distances,
    hear_all,
    pairs,
    present,
    schedule,
    speakers,
    steps_of_round,
)
from tests.gateway.workflows.files import definition
from tests.gateway.workflows.files import phase as one_phase

AGENTS = ["ann", "bob", "cem", "dia"]


def phase(topology: str, channel: str = "public", **more: Any) -> Phase:
    return Phase.model_validate(
        {"name": "p", "agents": AGENTS, "listeners": ["eve"], "topology": topology, "channel": channel, **more}
    )


def test_the_channel_says_who_hears() -> None:
    others = ("bob", "cem", "dia", "eve")
    assert audience(phase("ring"), "ann", ("bob",)) == Audience(others, ())
    assert audience(phase("ring", "private"), "ann", ("bob",)) == Audience(("bob",), ())
    assert audience(phase("ring", "whisper"), "ann", ("bob",)) == Audience(("bob",), ("cem", "dia", "eve"))
    assert audience(phase("round_robin", "private"), "ann", ("eve", "cem")) == Audience(("cem", "eve"), ())


@given(
    st.sampled_from(["round_robin", "all_at_once", "pairs", "hub", "ring", "broadcast"]),
    st.sampled_from(["public", "private", "whisper"]),
    st.integers(1, 6),
    st.integers(0, 2),
)
def test_an_audience_is_others_of_the_phase_each_once(topology: str, channel: str, size: int, listening: int) -> None:
    agents = [f"a{i}" for i in range(size)]
    made = phase(topology, channel, agents=agents, listeners=[f"l{i}" for i in range(listening)], center="a0")
    for name in speakers(made):
        for meant in addressees(made, name):
            heard = audience(made, name, meant)
            assert name not in meant
            assert set(meant) <= set(heard.listeners)
            together = [*heard.listeners, *heard.bystanders]
            assert len(together) == len(set(together))
            assert name not in together
            assert set(together) <= set(present(made))
            assert hear_all(made, name) <= set(heard.listeners)
            # Only in private may somebody learn nothing at all.
            assert channel == "private" or set(together) == set(present(made)) - {name}


def test_what_a_phase_does_not_say_is_left_out() -> None:
    assert pairs(phase("pairs", agents=["a", "b", "c"])) == (("a", "b"),)
    assert addressees(phase("pairs", agents=["a", "b", "c"]), "c") == ()
    assert addressees(phase("hub"), "ann") == ((),)
    assert addressees(phase("ring", agents=["ann"]), "ann") == ()
    assert addressees(phase("broadcast"), "ann") == ()


def spoken(**arguments: Any) -> list[list[str]]:
    """A round's steps, each as "speaker>whom"."""
    steps = steps_of_round(one_phase(**arguments))
    return [[f"{speech.speaker}>{''.join(speech.to)}" for speech in step] for step in steps]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [["a>bcd"], ["b>acd"], ["c>abd"], ["d>abc"]]),
        ({"to": {"b": ["d"]}}, [["a>bcd"], ["b>d"], ["c>abd"], ["d>abc"]]),
        ({"topology": "all_at_once"}, [["a>bcd", "b>acd", "c>abd", "d>abc"]]),
        ({"topology": "pairs"}, [["a>b", "c>d"], ["b>a", "d>c"]]),
        ({"topology": "pairs", "pairs": [["d", "a"]]}, [["d>a"], ["a>d"]]),
        ({"topology": "hub", "center": "b"}, [["b>a"], ["a>b"], ["b>c"], ["c>b"], ["b>d"], ["d>b"]]),
        ({"topology": "ring"}, [["a>b"], ["b>c"], ["c>d"], ["d>a"]]),
        ({"topology": "broadcast", "center": "c"}, [["c>abd"]]),
        ({"topology": "broadcast", "center": "c", "to": {"c": ["d"]}}, [["c>d"]]),
    ],
)
def test_a_round(arguments: dict[str, Any], expected: list[list[str]]) -> None:
    assert spoken(agents=["a", "b", "c", "d"], **arguments) == expected


def test_a_schedule_has_all_rounds_of_all_phases() -> None:
    workflow = definition(
        {"agents": ["a", "b"], "rounds": 2}, {"agents": ["a", "c"], "topology": "pairs", "listeners": ["b"]}
    )
    found = [(place.phase, place.round, place.step, place.speeches[0].speaker) for place in schedule(workflow)]
    assert found == [(0, 1, 0, "a"), (0, 1, 1, "b"), (0, 2, 0, "a"), (0, 2, 1, "b"), (1, 1, 0, "a"), (1, 1, 1, "c")]
    assert schedule(workflow)[0].speeches == (Speech("a", ("b",)),)


def test_distances_are_those_of_a_walk_along_the_schedule() -> None:
    dice = random.Random(5)
    names = ["a", "b", "c", "d", "e"]
    phases = [
        {
            "agents": dice.sample(names, dice.choice([2, 4])),
            "topology": dice.choice(["round_robin", "all_at_once", "pairs", "ring"]),
            "rounds": dice.randint(1, 3),
        }
        for _ in range(6)
    ]
    places = schedule(definition(*phases))
    for now in range(-1, len(places) + 1):
        found = distances(places, now, names)
        for name in names:
            later = [at for at in range(now + 1, len(places)) if name in {s.speaker for s in places[at].speeches}]
            assert found[name] == (later[0] - now if later else None)
