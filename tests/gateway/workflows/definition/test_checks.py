"""Mistakes of a whole workflow, with their lines, and of a phase by itself."""

import pytest

from gateway.workflows.definition.checks import turns
from gateway.workflows.definition.parser import MalformedDefinition, load
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


HEAD = "workflow: w\nagents: {ann: {}, bob: {}, cem: {}}\nphases:\n"
ALL = "  - {name: all, agents: [ann, bob, cem]}\n"

PHASES = """\
{agents: [ann, dia]}
    agents[1]: dia is none of the workflow's agents
{agents: [ann], listeners: [dia]}
    listeners[0]: dia is none of the workflow's agents
{agents: [ann, ann]}
    agents[1]: ann is named twice among the phase's agents and listeners
{agents: [ann], listeners: [ann]}
    listeners[0]: ann is named twice among the phase's agents and listeners
{topology: hub, agents: [ann, bob]}
    center: is required in hub
{topology: broadcast, agents: [ann, bob], prompts: {ann: who speaks is not known yet}}
    center: is required in broadcast
{topology: hub, agents: [ann, bob], listeners: [cem], center: cem}
    center: cem is none of the phase's agents
{agents: [ann, bob], center: ann}
    center: means nothing in round_robin; only hub and broadcast have one
{topology: hub, center: ann, agents: [ann], listeners: [bob]}
    agents: has nobody beside the center, but hub needs others
{topology: broadcast, center: ann, agents: [ann]}
    agents: has nobody beside the center, but broadcast needs others
{agents: [ann, bob], pairs: [[ann, bob]]}
    pairs: means nothing in round_robin
{topology: pairs, agents: [ann, bob, cem]}
    agents: must be an even number, or `pairs` must say who speaks with whom
{topology: pairs, agents: [ann, bob], pairs: [[ann, bob], [cem, dia]]}
    pairs[1][0]: cem is none of the phase's agents
    pairs[1][1]: dia is none of the phase's agents
{topology: pairs, agents: [ann, bob, cem], pairs: [[ann, bob], [cem, ann]]}
    pairs[1][1]: ann has a partner already
{topology: pairs, agents: [ann], pairs: [[ann, ann]]}
    pairs[0][1]: ann has a partner already
{topology: pairs, agents: [ann, bob, cem], pairs: [[ann, bob]]}
    agents[2]: cem is in none of the pairs; name it under listeners, or pair it
{topology: ring, agents: [ann]}
    agents: must be two or more in a ring
{topology: ring, agents: [ann, bob], to: {ann: [bob]}}
    to: means nothing in ring, where its place says for whom it is meant
{agents: [ann, bob], to: {cem: [bob]}}
    to.cem: cem does not speak in this phase
{agents: [ann, bob], topology: broadcast, center: ann, to: {bob: [ann]}}
    to.bob: bob does not speak in this phase
{agents: [ann, bob], to: {ann: [cem]}}
    to.ann[0]: cem is not in this phase
{agents: [ann, bob], to: {ann: [ann]}}
    to.ann[0]: ann cannot speak to itself
{agents: [ann, bob], to: {ann: [bob, bob]}}
    to.ann[1]: bob is named twice
{agents: [ann], listeners: [bob], prompts: {ann: x, bob: y, '*': z}}
    prompts.bob: bob does not speak in this phase
{agents: [ann], until: {}}
    until: must have `said`, or `unanimous: true`
{agents: [ann], outcome: {kind: vote, options: [yes, no]}, until: {unanimous: true, by: ann}}
    until.by: means nothing without `said`
{agents: [ann], until: {said: done, by: bob}}
    until.by: bob does not speak in this phase
{agents: [ann], until: {unanimous: true}}
    until.unanimous: needs an outcome of kind vote
{agents: [ann], outcome: {kind: choice, options: [yes, no]}, until: {said: done, unanimous: true}}
    until.unanimous: needs an outcome of kind vote
{topology: broadcast, center: ann, agents: [ann, bob], outcome: {kind: vote, options: [a, b]}, until: {unanimous: true}}
    until.unanimous: can't be: bob does not speak; name the voters
{agents: [ann], outcome: {kind: vote, options: [yes, no], voters: [bob]}}
    outcome.voters[0]: bob does not speak in this phase
{agents: [ann], outcome: {kind: vote, options: [yes, no], voters: [ann, ann]}}
    outcome.voters[1]: ann is named twice
{agents: [ann], outcome: {kind: choice, options: [yes, no], agents: [bob]}}
    outcome.agents[0]: bob does not speak in this phase
{agents: [ann], outcome: {kind: number, agents: [bob]}}
    outcome.agents[0]: bob does not speak in this phase
{agents: [ann], outcome: {kind: json, agent: bob, schema: {}}}
    outcome.agent: bob does not speak in this phase
{agents: [ann], outcome: {kind: text, agent: bob}}
    outcome.agent: bob does not speak in this phase
{agents: [ann], outcome: {kind: vote, options: [yes, no, YES]}}
    outcome.options[2]: is given twice; case does not count
{agents: [ann], outcome: {kind: choice, options: [straße, STRASSE]}}
    outcome.options[1]: is given twice; case does not count
"""
"""Phases without their names, each with its problems below."""


def of_phases() -> dict[str, list[str]]:
    lines = PHASES.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    return {
        lines[start]: [line.strip() for line in lines[start + 1 : end]]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)
    }


@pytest.mark.parametrize(("phase", "wrong"), of_phases().items())
def test_what_is_wrong_with_a_phase(phase: str, wrong: list[str]) -> None:
    with pytest.raises(MalformedDefinition) as caught:
        load(f"{HEAD}{ALL}  - {{name: p, {phase[1:]}", {})
    told = [f"{one.field.removeprefix('phases[1].')}: {one.message}" for one in caught.value.diagnostics]
    assert sorted(told) == wrong


GOOD = {
    "robin": "{name: p, agents: [ann, bob], listeners: [cem], to: {ann: [bob], bob: [cem, ann]}, channel: whisper}",
    "once": "{name: p, topology: all_at_once, agents: [ann, bob], to: {ann: [bob]}, prompts: {ann: x, '*': y}}",
    "pairs": "{name: p, topology: pairs, agents: [ann, bob]}",
    "given": "{name: p, topology: pairs, agents: [ann, bob], pairs: [[bob, ann]], prompts: {bob: x}}",
    "hub": "{name: p, topology: hub, center: bob, agents: [ann, bob], prompts: {ann: x, bob: y}}",
    "ring": "{name: p, topology: ring, agents: [ann, bob], prompts: x}",
    "broadcast": "{name: p, topology: broadcast, center: ann, agents: [ann, bob], to: {ann: [bob]}}",
    "listeners": "{name: p, topology: broadcast, center: ann, agents: [ann], listeners: [bob]}",
    "until": "{name: p, agents: [ann], until: {said: done, by: ann}, rounds: 3}",
    "vote": "{name: p, agents: [ann], outcome: {kind: vote, options: [a, b], voters: [ann]}, until: {unanimous: true}}",
    "number": "{name: p, agents: [ann, bob], outcome: {kind: number, agents: [bob]}, until: {said: done, by: all}}",
    "json": "{name: p, agents: [ann], outcome: {kind: json, agent: ann, schema: {type: object}}}",
}


@pytest.mark.parametrize("phase", GOOD.values(), ids=GOOD)
def test_phases_that_can_take_place(phase: str) -> None:
    assert len(load(f"{HEAD}{ALL}  - {phase}\n", {}).phases) == 2
