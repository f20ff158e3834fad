"""Who speaks when, if nothing ends a phase early. Pure; what prefetches and turn hints are made of.

A schedule is flat: one entry for each step of each round of each phase, with those who speak in it at the same time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.workflows.audience import addressees, pairs, speakers
from gateway.workflows.definition.schema import Definition, Phase


class Speech(NamedTuple):
    """Who speaks, and for whom that is meant."""

    speaker: str
    to: tuple[str, ...]


class Place(NamedTuple):
    """One step's place: the phase's index, the round from 1, the step of the round from 0; and who speaks in it."""

    phase: int
    round: int
    step: int
    speeches: tuple[Speech, ...]


def steps_of_round(phase: Phase) -> list[tuple[Speech, ...]]:
    """The steps of one round, each with those who speak at the same time."""
    match phase.topology:
        case "all_at_once":
            return [tuple(_speech(phase, agent) for agent in phase.agents)]
        case "pairs":
            paired = pairs(phase)
            return [
                tuple(_speech(phase, first) for first, _ in paired),
                tuple(_speech(phase, second) for _, second in paired),
            ]
        case "hub":
            assert phase.center is not None
            center = phase.center
            meant = addressees(phase, center)
            return [step for to in meant for step in ((Speech(center, to),), (Speech(to[0], (center,)),))]
        case _:
            return [(_speech(phase, agent),) for agent in speakers(phase)]


def _speech(phase: Phase, agent: str) -> Speech:
    """What an agent says that speaks once in a round."""
    return Speech(agent, addressees(phase, agent)[0])


def schedule(definition: Definition) -> list[Place]:
    """All steps of a run in which nothing ends a phase early."""
    return [
        Place(index, number, step, speeches)
        for index, phase in enumerate(definition.phases)
        for number in range(1, phase.rounds + 1)
        for step, speeches in enumerate(steps_of_round(phase))
    ]


def distances(places: Sequence[Place], now: int, agents: Sequence[str]) -> dict[str, int | None]:
    """Steps from place `now` until each agent speaks after it: 1 for the step that follows, None for never again."""
    found: dict[str, int | None] = dict.fromkeys(agents)
    for place in range(len(places) - 1, now, -1):
        for speech in places[place].speeches:
            found[speech.speaker] = place - now
    return found
