from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workflows.definition.extent import turns, works
from gateway.workflows.definition.schema import Phase
from gateway.workflows.program import Program
from tests.gateway.workflows.files import definition


@pytest.mark.parametrize(
    ("topology", "count"),
    [("round_robin", 12), ("all_at_once", 12), ("pairs", 12), ("hub", 18), ("ring", 12), ("broadcast", 3)],
)
def test_turns_of_a_phase(topology: str, count: int) -> None:
    phase = {"name": "p", "agents": ["a", "b", "c", "d"], "center": "b", "rounds": 3, "topology": topology}
    assert turns(Phase.model_validate(phase)) == count


@st.composite
def phases(draw: st.DrawFn, listening: st.SearchStrategy[str]) -> dict[str, Any]:
    topology = draw(st.sampled_from(["round_robin", "all_at_once", "pairs", "hub", "ring", "broadcast"]))
    agents = draw(st.permutations("abcd"))[: 4 if topology == "pairs" else draw(st.integers(2, 4))]
    return {
        "agents": agents,
        "topology": topology,
        "listeners": draw(st.lists(st.sampled_from("efg"), unique=True)),
        "center": agents[0] if topology in ("hub", "broadcast") else None,
        "to": {agents[0]: [agents[1]]} if topology in ("round_robin", "all_at_once") and draw(st.booleans()) else {},
        "channel": draw(st.sampled_from(["public", "private", "whisper"])),
        "rounds": draw(st.integers(1, 3)),
        "opening": draw(st.sampled_from(["", "begin"])),
        "listening": draw(listening),
    }


def done(made: list[dict[str, Any]]) -> tuple[int, int]:
    """What a run of phases does, and what is counted for it before."""
    workflow = definition(*made, agents={name: {"system": "You are ${agent}."} for name in "abcdefg"})
    takes_part = {name for phase in made for name in (*phase["agents"], *phase["listeners"])}
    for name in set("abcdefg") - takes_part:
        del workflow.agents[name]
    program, said, count = Program(workflow), dict[str, str](), 0
    while (step := program.advance(said)) is not None:
        count += len(step.listenings) + len(step.turns)
        said = {turn.agent: "word" for turn in step.turns}
    return count, sum(works(workflow))


@given(st.lists(phases(st.just("notes")), min_size=1, max_size=3))
def test_notes_are_counted_one_by_one(made: list[dict[str, Any]]) -> None:
    count, counted = done(made)
    assert count == counted


@given(st.lists(phases(st.sampled_from(["silent", "notes"])), min_size=1, max_size=4))
def test_a_run_does_no_more_than_is_counted(made: list[dict[str, Any]]) -> None:
    count, counted = done(made)
    assert count <= counted
