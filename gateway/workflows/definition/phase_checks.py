"""What no schema can say about one phase: whether it can take place in its topology, with the agents it names."""

from collections.abc import Iterable, Iterator

from gateway.workflows.audience import present, speakers
from gateway.workflows.definition.mistakes import Path
from gateway.workflows.definition.problem import Problem
from gateway.workflows.definition.schema import Choice, Definition, Json, Number, Outcome, Phase, Said, Vote

_CENTERED = ("hub", "broadcast")
_ADDRESSED = ("round_robin", "all_at_once", "broadcast")


def phase_problems(definition: Definition, index: int) -> Iterator[Problem]:
    """What is wrong with the phase at `index`."""
    phase, path = definition.phases[index], ("phases", index)
    yield from _members(phase, path, definition)
    topology = [*_center(phase, path), *_pairs(phase, path), *_ring(phase, path)]
    yield from topology
    # Where it is unclear who speaks, that is said, and not also that all others don't.
    speaking = set(present(phase)) if topology else set(speakers(phase))
    yield from _to(phase, path, speaking)
    if isinstance(phase.prompts, dict):
        named = [name for name in phase.prompts if name != "*"]
        yield from _silent((((*path, "prompts", name), name) for name in named), speaking, of_key=True)
    yield from _until(phase, path, speaking)
    if phase.outcome is not None:
        yield from _outcome(phase.outcome, (*path, "outcome"), speaking)


def _members(phase: Phase, path: Path, definition: Definition) -> Iterator[Problem]:
    seen: set[str] = set()
    for field, names in (("agents", phase.agents), ("listeners", phase.listeners)):
        for place, name in enumerate(names):
            if name not in definition.agents:
                yield Problem((*path, field, place), f"{name} is none of the workflow's agents")
            if name in seen:
                yield Problem((*path, field, place), f"{name} is named twice among the phase's agents and listeners")
            seen.add(name)


def _center(phase: Phase, path: Path) -> Iterator[Problem]:
    if phase.topology not in _CENTERED:
        if phase.center is not None:
            yield Problem((*path, "center"), f"means nothing in {phase.topology}; only hub and broadcast have one")
        return
    if phase.center is None:
        yield Problem((*path, "center"), f"is required in {phase.topology}")
    elif phase.center not in phase.agents:
        yield Problem((*path, "center"), f"{phase.center} is none of the phase's agents")
    elif len(phase.agents) == 1 and (phase.topology == "hub" or not phase.listeners):
        yield Problem((*path, "agents"), f"has nobody beside the center, but {phase.topology} needs others")


def _pairs(phase: Phase, path: Path) -> Iterator[Problem]:
    if phase.topology != "pairs":
        if phase.pairs is not None:
            yield Problem((*path, "pairs"), f"means nothing in {phase.topology}")
        return
    if phase.pairs is None:
        if len(phase.agents) % 2:
            yield Problem((*path, "agents"), "must be an even number, or `pairs` must say who speaks with whom")
        return
    seen: set[str] = set()
    for place, pair in enumerate(phase.pairs):
        for side, name in enumerate(pair):
            if name not in phase.agents:
                yield Problem((*path, "pairs", place, side), f"{name} is none of the phase's agents")
            if name in seen:
                yield Problem((*path, "pairs", place, side), f"{name} has a partner already")
            seen.add(name)
    for place, name in enumerate(phase.agents):
        if name not in seen:
            yield Problem(
                (*path, "agents", place), f"{name} is in none of the pairs; name it under listeners, or pair it"
            )


def _ring(phase: Phase, path: Path) -> Iterator[Problem]:
    if phase.topology == "ring" and len(phase.agents) < 2:
        yield Problem((*path, "agents"), "must be two or more in a ring")


def _to(phase: Phase, path: Path, speaking: set[str]) -> Iterator[Problem]:
    if phase.topology not in _ADDRESSED:
        if phase.to:
            yield Problem(
                (*path, "to"), f"means nothing in {phase.topology}, where its place says for whom it is meant"
            )
        return
    yield from _silent((((*path, "to", name), name) for name in phase.to), speaking, of_key=True)
    there = present(phase)
    for speaker, names in phase.to.items():
        seen: set[str] = set()
        for place, name in enumerate(names):
            at = (*path, "to", speaker, place)
            if name not in there:
                yield Problem(at, f"{name} is not in this phase")
            elif name == speaker:
                yield Problem(at, f"{name} cannot speak to itself")
            elif name in seen:
                yield Problem(at, f"{name} is named twice")
            seen.add(name)


def _until(phase: Phase, path: Path, speaking: set[str]) -> Iterator[Problem]:
    until = phase.until
    if until is None:
        return
    if until.said is None and not until.unanimous:
        yield Problem((*path, "until"), "must have `said`, or `unanimous: true`")
    if until.said is None and "by" in until.model_fields_set:
        yield Problem((*path, "until", "by"), "means nothing without `said`")
    if until.by not in ("any", "all"):
        yield from _silent([((*path, "until", "by"), until.by)], speaking)
    if until.unanimous and not isinstance(phase.outcome, Vote):
        yield Problem((*path, "until", "unanimous"), "needs an outcome of kind vote")
    elif until.unanimous and isinstance(phase.outcome, Vote) and phase.outcome.voters is None:
        mute = [name for name in phase.agents if name not in speaking]
        if mute:
            yield Problem((*path, "until", "unanimous"), f"can't be: {mute[0]} does not speak; name the voters")


def _outcome(outcome: Outcome, path: Path, speaking: set[str]) -> Iterator[Problem]:
    match outcome:
        case Vote(voters=names):
            yield from _names(names or [], (*path, "voters"), speaking)
        case Choice(agents=names) | Number(agents=names):
            yield from _names(names or [], (*path, "agents"), speaking)
        case Json(agent=name) | Said(agent=name):
            yield from _silent([((*path, "agent"), name)], speaking)
    if isinstance(outcome, Vote | Choice):
        seen: set[str] = set()
        for place, option in enumerate(outcome.options):
            if option.casefold() in seen:
                yield Problem((*path, "options", place), "is given twice; case does not count")
            seen.add(option.casefold())


def _names(names: list[str], path: Path, speaking: set[str]) -> Iterator[Problem]:
    yield from _silent((((*path, place), name) for place, name in enumerate(names)), speaking)
    seen: set[str] = set()
    for place, name in enumerate(names):
        if name in seen:
            yield Problem((*path, place), f"{name} is named twice")
        seen.add(name)


def _silent(named: Iterable[tuple[Path, str]], speaking: set[str], *, of_key: bool = False) -> Iterator[Problem]:
    for path, name in named:
        if name not in speaking:
            yield Problem(path, f"{name} does not speak in this phase", of_key)
