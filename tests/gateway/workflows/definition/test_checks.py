"""Mistakes of a whole workflow, with their lines."""

import pytest

from gateway.workflows.definition.checks import turns
from gateway.workflows.definition.parser import load
from gateway.workflows.definition.schema import MAX_TURNS, Phase
from tests.gateway.workflows.definition.marked import marked, told


@pytest.mark.parametrize(
    ("topology", "count"),
    [("round_robin", 12), ("all_at_once", 12), ("pairs", 12), ("hub", 18), ("ring", 12), ("broadcast", 3)],
)
def test_turns_of_a_phase(topology: str, count: int) -> None:
    phase = {"name": "p", "agents": ["a", "b", "c", "d"], "center": "b", "rounds": 3, "topology": topology}
    assert turns(Phase.model_validate(phase)) == count


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
    "names that mean something else": """
workflow: w
agents:
  any: {}  #! agents.any | has another meaning in `until: {by: any}`; rename it
  all: {}  #! agents.all | has another meaning in `until: {by: all}`; rename it
phases:
  - {name: p, agents: [any, all]}
""",
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


def test_as_many_turns_as_there_may_be() -> None:
    text = MISTAKEN["too many turns"].replace("  - name: r\n    rounds: 2 ", "#").replace("    agents: [a]\n", "")
    text = text.replace("  - {name: s, agents: [a]}\n", "")
    assert sum(turns(phase) for phase in load(text, {}).phases) == MAX_TURNS
