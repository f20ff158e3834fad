"""How much a run of a definition may do, if nothing stops it early: turns, and what is read and noted beside them.

A turn and a note are texts that the worker generates, a silent listening is one that it reads; each has a request, a
place in the run's record, and a commit.
"""

from gateway.workflows.audience import addressees, audience, present, speakers
from gateway.workflows.definition.schema import Definition, Phase
from gateway.workflows.hearing import takes_notes


def turns(phase: Phase) -> int:
    """How many turns `phase` has."""
    a_round = 2 * (len(phase.agents) - 1) if phase.topology == "hub" else len(speakers(phase))
    return a_round * phase.rounds


def works(definition: Definition) -> list[int]:
    """How many turns, listenings and notes each phase has at most; the agents' introductions count in the first.

    The phases must be ones that can take place.
    """
    counted = [turns(phase) + _read(phase, definition.defaults.listening) for phase in definition.phases]
    return [counted[0] + sum(bool(agent.system) for agent in definition.agents.values()), *counted[1:]]


def _read(phase: Phase, default: str) -> int:
    """What is read beside turns.

    In notes, each of those who hear or see an utterance, or read the opening, notes it by itself. In silence, one who
    speaks in the next step may read before it does, and all read once when the phase is over.
    """
    if not takes_notes(phase, default):
        return turns(phase) + len(present(phase))
    heard = [audience(phase, speaker, meant) for speaker in speakers(phase) for meant in addressees(phase, speaker)]
    openings = len(present(phase)) if phase.opening else 0
    return openings + phase.rounds * sum(len(each.listeners) + len(each.bystanders) for each in heard)
