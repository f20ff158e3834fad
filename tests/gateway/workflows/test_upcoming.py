"""Who speaks when: every topology, and the distance to everybody's next turn."""

import random
from typing import Any

import pytest

from gateway.workflows.upcoming import Speech, distances, schedule, steps_of_round
from tests.gateway.workflows.files import definition, phase


def spoken(**arguments: Any) -> list[list[str]]:
    """A round's steps, each as "speaker>whom"."""
    steps = steps_of_round(phase(**arguments))
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
    ],
    ids=["round robin", "with to", "all at once", "pairs", "given pairs", "hub", "ring", "broadcast"],
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
