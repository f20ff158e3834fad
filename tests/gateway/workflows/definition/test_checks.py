"""What no schema can say about a workflow, told with its line; and how much a run does at most."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.workflows.definition.checks import tasks, turns
from gateway.workflows.definition.parser import MalformedDefinition, load
from gateway.workflows.definition.schema import MAX_TASKS, MAX_TURNS, Phase
from gateway.workflows.program import Program
from tests.gateway.workflows.definition.marked import marked, told
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
    return count, sum(tasks(workflow))


@given(st.lists(phases(st.just("notes")), min_size=1, max_size=3))
def test_notes_are_counted_one_by_one(made: list[dict[str, Any]]) -> None:
    count, counted = done(made)
    assert count == counted


SILENT_THEN_ALL_AT_ONCE = [
    {"agents": [*"abcd"], "topology": "broadcast", "center": "a", "opening": "begin", "listening": "silent"},
    {"agents": [*"abcd"], "topology": "all_at_once", "listening": "notes"},
]
"""Three read before the first phase's only turn, since they speak in the next step."""


@pytest.mark.slow
@given(st.lists(phases(st.sampled_from(["silent", "notes"])), min_size=1, max_size=4))
@example([{"listeners": [], **phase} for phase in SILENT_THEN_ALL_AT_ONCE])
def test_a_run_does_no_more_than_is_counted(made: list[dict[str, Any]]) -> None:
    count, counted = done(made)
    assert count <= counted


MISTAKEN = {
    "never takes part": """
workflow: w
agents:
  ann: {}
  bob: {}  #! agents.bob | takes part in no phase
phases:
  - {name: p, agents: [ann]}
""",
    "id of one that does not persist": """
workflow: w
agents:
  ann:
    id: anna  #! agents.ann.id | names a memory, but the agent does not persist
phases:
  - {name: p, agents: [ann]}
""",
    "one memory, by id": """
workflow: w
agents:
  ann: {persist: true, id: x}
  bob: {persist: true, id: x}  #! agents.bob.id | is the memory of ann already
phases:
  - {name: p, agents: [ann, bob]}
""",
    "one memory, by name and default model": """
workflow: w
defaults: {model: demo}
agents:
  ann: {persist: true, id: bob, model: demo}
  bob:
    persist: true  #! agents.bob.id | is the memory of ann already
phases:
  - {name: p, agents: [ann, bob]}
""",
    "one memory, if the server's default is the other's model": """
workflow: w
agents:
  ann: {persist: true, id: x, model: demo}
  bob: {persist: true, id: x}  #! agents.bob.id | may be the memory of ann; name the models of both, if they are different
  cem: {persist: true, id: x, model: other}  #! agents.cem.id | may be the memory of bob; name the models of both, if they are different
phases:
  - {name: p, agents: [ann, bob, cem]}
""",  # noqa: E501
    "names that mean something else": """
workflow: w
agents:
  any: {}  #! agents.any | has another meaning in `until: {by: any}`; rename it
  all: {}  #! agents.all | has another meaning in `until: {by: all}`; rename it
phases:
  - {name: p, agents: [any, all]}
""",
    "too many notes": """
workflow: w
agents: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}, i: {}, j: {}}
defaults: {listening: notes}
phases:
  - {name: p, agents: [a, b], rounds: 3}
  - name: q
    rounds: 100  #! phases[1].rounds | makes it 10056 turns, listenings and notes (the most in q 10000, r 44, p 12); a run has at most 10000: have fewer rounds or agents, or let listeners be silent
    agents: [a, b, c, d, e, f, g, h, i, j]
  - {name: r, agents: [a, b], rounds: 11}
""",  # noqa: E501
    "phases of one name": """
workflow: w
agents: {ann: {}}
phases:
  - {name: p, agents: [ann]}
  - name: q
    agents: [ann]
  - agents: [ann]
    name: p  #! phases[2].name | is the name of an earlier phase
""",
    "too many turns": """
workflow: w
agents: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}, i: {}, j: {}}
phases:
  - {name: p, agents: [a, b, c, d, e, f, g, h, i, j], rounds: 100}
  - {name: q, agents: [a, b, c, d, e, f, g, h, i, j], rounds: 100}
  - name: r
    rounds: 2  #! phases[2].rounds | makes it 2002 turns up to here; a run has at most 2000
    agents: [a]
  - {name: s, agents: [a]}
""",
}


@pytest.mark.parametrize("text", MISTAKEN.values(), ids=MISTAKEN)
def test_what_is_wrong_with_a_workflow_is_told_with_its_line(text: str) -> None:
    assert told(text) == marked(text)


@pytest.mark.parametrize(
    "second",
    ["agents: {b: {persist: true, id: x, model: n}, ", "defaults: {model: n}, agents: {b: {persist: true, id: x}, "],
)
def test_one_id_on_two_models_is_two_memories(second: str) -> None:
    text = f"{{workflow: w, {second}a: {{persist: true, id: x, model: m}}}}, phases: [{{name: p, agents: [a, b]}}]}}"
    assert len(load(text, {}).agents) == 2


def test_as_many_works_as_there_may_be() -> None:
    names = ", ".join(f"a{number}" for number in range(10))
    text = f"""
workflow: w
agents: {{{names.replace(",", ": {},")}: {{}}}}
phases:
  - {{name: p, agents: [{names}], rounds: 99, listening: notes}}
  - {{name: q, agents: [{names}], rounds: 4}}
"""
    made = load(text, {})
    assert tasks(made) == [9900, 90]
    made.agents["a0"].system = "You are."
    assert tasks(made) == [9901, 90]
    assert load(text.replace("a0: {}", "a0: {system: hello}"), {})
    silent = load(text.replace("listening: notes", "listening: silent"), {})
    assert tasks(silent) == [1990, 90]
    with pytest.raises(MalformedDefinition, match=f"at most {MAX_TASKS}"):
        load(text.replace("rounds: 4", "rounds: 5"), {})


def test_as_many_turns_as_there_may_be() -> None:
    text = MISTAKEN["too many turns"].replace("  - name: r\n    rounds: 2 ", "#").replace("    agents: [a]\n", "")
    text = text.replace("  - {name: s, agents: [a]}\n", "")
    assert sum(turns(phase) for phase in load(text, {}).phases) == MAX_TURNS
