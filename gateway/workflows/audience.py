"""Who speaks in a phase, to whom, and who hears it: functions of the phase alone.

An utterance is meant for its addressees, and the channel says who hears it:

    public     all others of the phase: its agents, and those who only listen
    private    the addressees
    whisper    the addressees; the others of the phase are bystanders, who learn that there was a whisper, and no more

All functions take a phase as `load()` lets it through. Given another (checks.py asks them about phases that still have
mistakes), they leave out whom the phase does not say: no center, or no partner, is an empty tuple.
"""

from itertools import pairwise
from typing import NamedTuple

from gateway.workflows.definition.schema import Phase


class Audience(NamedTuple):
    """Who hears an utterance, and who only learns that there was one; both in the order of the phase."""

    listeners: tuple[str, ...]
    bystanders: tuple[str, ...]


def present(phase: Phase) -> tuple[str, ...]:
    """All who are there: the agents, then those who only listen."""
    return (*phase.agents, *phase.listeners)


def speakers(phase: Phase) -> tuple[str, ...]:
    """Who speaks in a round, in the order of `agents`: only the center in broadcast, who has a partner in pairs."""
    match phase.topology:
        case "broadcast":
            return tuple(name for name in phase.agents if name == phase.center)
        case "pairs":
            paired = {name for pair in pairs(phase) for name in pair}
            return tuple(name for name in phase.agents if name in paired)
        case _:
            return tuple(phase.agents)


def pairs(phase: Phase) -> tuple[tuple[str, str], ...]:
    """Who speaks with whom in topology pairs: as the phase says, or neighbours in `agents`."""
    if phase.pairs is not None:
        return tuple((first, second) for first, second in phase.pairs)
    return tuple(pairwise(phase.agents))[::2]


def addressees(phase: Phase, speaker: str) -> tuple[tuple[str, ...], ...]:
    """For whom each of the utterances is meant that `speaker` makes in one round, in their order.

    That is one, save for a hub's center: it speaks to each of the others, one at a time, in the order of `agents`. One
    who does not speak makes none.
    """
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
    """Who hears what `speaker` says to `addressees`. The speaker is in neither part: it knows what it said."""
    others = tuple(name for name in present(phase) if name != speaker)
    if phase.channel == "public":
        return Audience(others, ())
    meant = tuple(name for name in others if name in addressees)
    return Audience(meant, tuple(name for name in others if name not in meant) if phase.channel == "whisper" else ())


def hear_all(phase: Phase, speaker: str) -> frozenset[str]:
    """Who surely hears all that `speaker` says in the phase, whatever is said there and whenever it ends.

    All rounds are alike, so those are the common listeners of one round's utterances. It is conservative for a hub's
    center on a channel that is not public: it says the last to the last of the others, but with two or more of them
    this counts nobody. Whoever is in here may read any of its utterances; the speaker itself is not in here.
    """
    heard = [frozenset(audience(phase, speaker, meant).listeners) for meant in addressees(phase, speaker)]
    return frozenset.intersection(*heard) if heard else frozenset()
