import pytest

from gateway.workflows.definition.parser import load
from tests.gateway.workflows.definition.marked import marked, told

HEAD = "workflow: w\nagents: {ann: {}, bob: {}, cem: {}}\nphases:\n"
ALL = "  - {name: all, agents: [ann, bob, cem]}\n"

MISTAKEN = {
    "unknown agent": "  - {name: p, agents: [ann, dia]}  #! phases[1].agents[1] | dia is none of the workflow's agents",
    "unknown listener": """
  - name: p
    agents: [ann]
    listeners: [dia]  #! phases[1].listeners[0] | dia is none of the workflow's agents
""",
    "agent twice": """
  - name: p
    agents:
      - ann
      - ann  #! phases[1].agents[1] | ann is named twice among the phase's agents and listeners
""",
    "agent and listener": """
  - name: p
    agents: [ann]
    listeners: [ann]  #! phases[1].listeners[0] | ann is named twice among the phase's agents and listeners
""",
    "no center": "  - {name: p, topology: hub, agents: [ann, bob]}  #! phases[1].center | is required in hub",
    "no center to broadcast": """
  - name: p  #! phases[1].center | is required in broadcast
    topology: broadcast
    agents: [ann, bob]
    prompts: {ann: who speaks is not known yet}
""",
    "center is a listener": """
  - name: p
    topology: hub
    agents: [ann, bob]
    listeners: [cem]
    center: cem  #! phases[1].center | cem is none of the phase's agents
""",
    "center of nothing": """
  - name: p
    agents: [ann, bob]
    center: ann  #! phases[1].center | means nothing in round_robin; only hub and broadcast have one
""",
    "hub alone": """
  - name: p
    topology: hub
    center: ann
    agents: [ann]  #! phases[1].agents | has nobody beside the center, but hub needs others
    listeners: [bob]
""",
    "broadcast alone": """
  - name: p
    topology: broadcast
    center: ann
    agents: [ann]  #! phases[1].agents | has nobody beside the center, but broadcast needs others
""",
    "pairs elsewhere": """
  - name: p
    agents: [ann, bob]
    pairs: [[ann, bob]]  #! phases[1].pairs | means nothing in round_robin
""",
    "odd pairs": """
  - name: p
    topology: pairs
    agents: [ann, bob, cem]  #! phases[1].agents | must be an even number, or `pairs` must say who speaks with whom
""",
    "pair of strangers": """
  - name: p
    topology: pairs
    agents: [ann, bob]
    pairs:
      - [ann, bob]
      - - cem  #! phases[1].pairs[1][0] | cem is none of the phase's agents
        - dia  #! phases[1].pairs[1][1] | dia is none of the phase's agents
""",
    "in two pairs": """
  - name: p
    topology: pairs
    agents: [ann, bob, cem]
    pairs:
      - [ann, bob]
      - [cem, ann]  #! phases[1].pairs[1][1] | ann has a partner already
""",
    "with itself": """
  - name: p
    topology: pairs
    agents: [ann]
    pairs:
      - - ann
        - ann  #! phases[1].pairs[0][1] | ann has a partner already
""",
    "in no pair": """
  - name: p
    topology: pairs
    agents:
      - ann
      - bob
      - cem  #! phases[1].agents[2] | cem is in none of the pairs; name it under listeners, or pair it
    pairs: [[ann, bob]]
""",
    "ring of one": """
  - name: p
    topology: ring
    agents: [ann]  #! phases[1].agents | must be two or more in a ring
""",
    "to in a ring": """
  - name: p
    topology: ring
    agents: [ann, bob]
    to: {ann: [bob]}  #! phases[1].to | means nothing in ring, where its place says for whom it is meant
""",
    "to of nobody": """
  - name: p
    agents: [ann, bob]
    to:
      cem: [bob]  #! phases[1].to.cem | cem does not speak in this phase
""",
    "to of one who does not speak": """
  - name: p
    agents: [ann, bob]
    topology: broadcast
    center: ann
    to:
      bob: [ann]  #! phases[1].to.bob | bob does not speak in this phase
""",
    "to a stranger": """
  - name: p
    agents: [ann, bob]
    to: {ann: [cem]}  #! phases[1].to.ann[0] | cem is not in this phase
""",
    "to oneself": """
  - name: p
    agents: [ann, bob]
    to: {ann: [ann]}  #! phases[1].to.ann[0] | ann cannot speak to itself
""",
    "to one twice": """
  - name: p
    agents: [ann, bob]
    to: {ann: [bob, bob]}  #! phases[1].to.ann[1] | bob is named twice
""",
    "prompt for a listener": """
  - name: p
    agents: [ann]
    listeners: [bob]
    prompts:
      ann: x
      bob: y  #! phases[1].prompts.bob | bob does not speak in this phase
      "*": z
""",
    "until nothing": """
  - name: p
    agents: [ann]
    until: {}  #! phases[1].until | must have `said`, or `unanimous: true`
""",
    "until by whom": """
  - name: p
    agents: [ann]
    outcome: {kind: vote, options: [yes, no]}
    until: {unanimous: true, by: ann}  #! phases[1].until.by | means nothing without `said`
""",
    "until by a stranger": """
  - name: p
    agents: [ann]
    until: {said: done, by: bob}  #! phases[1].until.by | bob does not speak in this phase
""",
    "unanimous without a vote": """
  - name: p
    agents: [ann]
    until: {unanimous: true}  #! phases[1].until.unanimous | needs an outcome of kind vote
""",
    "unanimous of a choice": """
  - name: p
    agents: [ann]
    outcome: {kind: choice, options: [yes, no]}
    until: {said: done, unanimous: true}  #! phases[1].until.unanimous | needs an outcome of kind vote
""",
    "unanimous in a broadcast": """
  - name: p
    agents: [ann, bob]
    topology: broadcast
    center: ann
    outcome: {kind: vote, options: [yes, no]}
    until: {unanimous: true}  #! phases[1].until.unanimous | can't be: bob does not speak; name the voters
""",
    "voter": """
  - name: p
    agents: [ann]
    outcome:
      kind: vote
      options: [yes, no]
      voters: [bob]  #! phases[1].outcome.voters[0] | bob does not speak in this phase
""",
    "voter twice": """
  - name: p
    agents: [ann]
    outcome:
      kind: vote
      options: [yes, no]
      voters: [ann, ann]  #! phases[1].outcome.voters[1] | ann is named twice
""",
    "who chooses": """
  - name: p
    agents: [ann]
    outcome:
      kind: choice
      options: [yes, no]
      agents: [bob]  #! phases[1].outcome.agents[0] | bob does not speak in this phase
""",
    "whose number": """
  - name: p
    agents: [ann]
    outcome:
      kind: number
      agents: [bob]  #! phases[1].outcome.agents[0] | bob does not speak in this phase
""",
    "whose json": """
  - name: p
    agents: [ann]
    outcome:
      kind: json
      agent: bob  #! phases[1].outcome.agent | bob does not speak in this phase
      schema: {}
""",
    "whose text": """
  - name: p
    agents: [ann]
    outcome:
      kind: text
      agent: bob  #! phases[1].outcome.agent | bob does not speak in this phase
""",
    "equal options": """
  - name: p
    agents: [ann]
    outcome:
      kind: vote
      options: [yes, no, "YES"]  #! phases[1].outcome.options[2] | is given twice; case does not count
""",
    "equal choices": """
  - name: p
    agents: [ann]
    outcome:
      kind: choice
      options: [straße, STRASSE]  #! phases[1].outcome.options[1] | is given twice; case does not count
""",
}


@pytest.mark.parametrize("phase", MISTAKEN.values(), ids=MISTAKEN)
def test_what_is_wrong_with_a_phase_is_told_with_its_line(phase: str) -> None:
    text = HEAD + ALL + phase
    assert told(text) == marked(text)


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
