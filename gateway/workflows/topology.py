"""Speakers, addressees and listeners of a phase, as its topology and channel say. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.workflows.definition.schema import Definition, Phase


class Audience(NamedTuple):
    """Bystanders only learn that something was said."""

    listeners: tuple[str, ...]
    bystanders: tuple[str, ...]


def present(phase: Phase) -> tuple[str, ...]:
    return (*phase.agents, *phase.listeners)


def speakers(phase: Phase) -> tuple[str, ...]:
    """Return who speaks in a round, in the order of `agents`."""
    match phase.topology:
        case "broadcast":
            return tuple(name for name in phase.agents if name == phase.center)
        case "pairs":
            paired = {name for pair in pairs(phase) for name in pair}
            return tuple(name for name in phase.agents if name in paired)
        case _:
            return tuple(phase.agents)


def pairs(phase: Phase) -> tuple[tuple[str, str], ...]:
    """Return who speaks with whom: as the phase says, or neighbours in `agents`."""
    if phase.pairs is not None:
        return tuple((first, second) for first, second in phase.pairs)
    return tuple(pairwise(phase.agents))[::2]


def addressees(phase: Phase, speaker: str) -> tuple[tuple[str, ...], ...]:
    """Return for whom each utterance of a speaker in one round is meant: one, but for a hub's center."""
    if speaker not in speakers(phase):
        return ()
    others = tuple(name for name in phase.agents if name != speaker)
    match phase.topology:
        case "hub" if speaker == phase.center:
            return tuple((name,) for name in others)
        case "hub":
            return (tuple(name for name in others if name == phase.center),)
        case "pairs":
            partner = {first: second for pair in pairs(phase) for first, second in (pair, pair[::-1])}
            return ((partner[speaker],),) if speaker in partner else ()
        case "ring":
            following = phase.agents[(phase.agents.index(speaker) + 1) % len(phase.agents)]
            return ((following,),) if following != speaker else ()
        case _:
            return (tuple(phase.to.get(speaker, others)),)


def audience(phase: Phase, speaker: str, addressees: tuple[str, ...]) -> Audience:
    others = tuple(name for name in present(phase) if name != speaker)
    if phase.channel == "public":
        return Audience(others, ())
    meant = tuple(name for name in others if name in addressees)
    return Audience(meant, tuple(name for name in others if name not in meant) if phase.channel == "whisper" else ())


def hear_all(phase: Phase, speaker: str) -> frozenset[str]:
    """Return who surely hears all that `speaker` says in the phase, whenever it ends."""
    heard = [frozenset(audience(phase, speaker, meant).listeners) for meant in addressees(phase, speaker)]
    return frozenset.intersection(*heard) if heard else frozenset()


class Speech(NamedTuple):
    speaker: str
    to: tuple[str, ...]


class Place(NamedTuple):
    """`round` counts from 1, `step` of the round from 0."""

    phase: int
    round: int
    step: int
    speeches: tuple[Speech, ...]


def steps_of_round(phase: Phase) -> list[tuple[Speech, ...]]:
    """Return the steps of one round, each with those who speak at the same time."""
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
    return Speech(agent, addressees(phase, agent)[0])


def schedule(definition: Definition) -> list[Place]:
    return [
        Place(index, number, step, speeches)
        for index, phase in enumerate(definition.phases)
        for number in range(1, phase.rounds + 1)
        for step, speeches in enumerate(steps_of_round(phase))
    ]


def distances(places: Sequence[Place], now: int, agents: Sequence[str]) -> dict[str, int | None]:
    """Return the steps from place `now` until each agent speaks again; 1 is the next step, None never."""
    found: dict[str, int | None] = dict.fromkeys(agents)
    for place in range(len(places) - 1, now, -1):
        for speech in places[place].speeches:
            found[speech.speaker] = place - now
    return found
