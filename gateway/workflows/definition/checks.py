"""Checks that no schema can make: names that are there, phases that can take place, how much a run may do."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from gateway.workflows.definition.schema import (
    MAX_TURNS,
    Choice,
    Definition,
    Json,
    Number,
    Outcome,
    Phase,
    Said,
    Vote,
)
from gateway.workflows.topology import present, speakers

Path = tuple[str | int, ...]
"""The keys and indices that lead to a place in the file."""

_SILENT: Final = "does not speak in this phase"


class Problem(NamedTuple):
    """A mistake at `path`, or in its key. An unknown name is `given`; `known` may have been meant."""

    path: Path
    message: str
    of_key: bool = False
    given: str = ""
    known: Collection[str] = ()


def problems(definition: Definition) -> list[Problem]:
    """Return all that is wrong, apart from templates and variables."""
    phases = [problem for index in range(len(definition.phases)) for problem in _phase(definition, index)]
    return [*_agents(definition), *phases, *_phase_names(definition.phases), *_turns(definition.phases)]


def _agents(definition: Definition) -> Iterator[Problem]:
    there = {name for phase in definition.phases for name in present(phase)}
    for name, agent in definition.agents.items():
        if name in ("any", "all"):
            yield Problem(("agents", name), f"has another meaning in `until: {{by: {name}}}`; rename it", of_key=True)
        if name not in there:
            yield Problem(("agents", name), "takes part in no phase", of_key=True)
        if agent.id is not None and not agent.persist:
            yield Problem(("agents", name, "id"), "names a memory, but the agent does not persist")


def _phase_names(phases: list[Phase]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, phase in enumerate(phases):
        if phase.name in seen:
            yield Problem(("phases", index, "name"), "is the name of an earlier phase")
        seen.add(phase.name)


def _phase(definition: Definition, index: int) -> Iterator[Problem]:
    phase, path = definition.phases[index], ("phases", index)
    unknown, twice = "is none of the workflow's agents", "is named twice among the phase's agents and listeners"
    yield from _names((*path, "agents"), phase.agents, definition.agents, unknown, twice)
    yield from _names((*path, "listeners"), phase.listeners, definition.agents, unknown, twice, phase.agents)
    unclear = [*_center(phase, path), *_pairs(phase, path)]
    if phase.topology == "ring" and len(phase.agents) < 2:
        unclear.append(Problem((*path, "agents"), "must be two or more in a ring"))
    yield from unclear
    # Where it is unclear who speaks, it is not also a problem that all others don't.
    speaking = set(present(phase)) if unclear else set(speakers(phase))
    yield from _to(phase, path, speaking)
    if isinstance(phase.prompts, dict):
        yield from _keys((*path, "prompts"), phase.prompts, {*speaking, "*"})
    yield from _until(phase, (*path, "until"), speaking)
    if phase.outcome is not None:
        yield from _outcome(phase.outcome, (*path, "outcome"), speaking)


def _names(
    path: Path, names: Iterable[str], known: Collection[str], unknown: str, twice: str, before: Iterable[str] = ()
) -> Iterator[Problem]:
    seen = set(before)
    for place, name in enumerate(names):
        if name not in known:
            yield Problem((*path, place), f"{name} {unknown}", given=name, known=known)
        if name in seen:
            yield Problem((*path, place), f"{name} {twice}")
        seen.add(name)


def _keys(path: Path, names: Iterable[str], speaking: set[str]) -> Iterator[Problem]:
    for name in names:
        if name not in speaking:
            yield Problem((*path, name), f"{name} {_SILENT}", of_key=True)


def _center(phase: Phase, path: Path) -> Iterator[Problem]:
    if phase.topology not in ("hub", "broadcast"):
        if phase.center is not None:
            yield Problem((*path, "center"), f"means nothing in {phase.topology}; only hub and broadcast have one")
    elif phase.center is None:
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
    paired: list[str] = []
    for place, pair in enumerate(phase.pairs):
        unknown, twice = "is none of the phase's agents", "has a partner already"
        yield from _names((*path, "pairs", place), pair, phase.agents, unknown, twice, paired)
        paired += pair
    for place, name in enumerate(phase.agents):
        if name not in paired:
            message = f"{name} is in none of the pairs; name it under listeners, or pair it"
            yield Problem((*path, "agents", place), message)


def _to(phase: Phase, path: Path, speaking: set[str]) -> Iterator[Problem]:
    if phase.topology not in ("round_robin", "all_at_once", "broadcast"):
        if phase.to:
            message = f"means nothing in {phase.topology}, where its place says for whom it is meant"
            yield Problem((*path, "to"), message)
        return
    yield from _keys((*path, "to"), phase.to, speaking)
    for speaker, names in phase.to.items():
        at = (*path, "to", speaker)
        yield from _names(at, names, present(phase), "is not in this phase", "is named twice")
        if speaker in names:
            yield Problem((*at, names.index(speaker)), f"{speaker} cannot speak to itself")


def _until(phase: Phase, path: Path, speaking: set[str]) -> Iterator[Problem]:
    until = phase.until
    if until is None:
        return
    if until.said is None and not until.unanimous:
        yield Problem(path, "must have `said`, or `unanimous: true`")
    if until.said is None and "by" in until.model_fields_set:
        yield Problem((*path, "by"), "means nothing without `said`")
    if until.by not in ("any", "all", *speaking):
        yield Problem((*path, "by"), f"{until.by} {_SILENT}")
    if until.unanimous and not isinstance(phase.outcome, Vote):
        yield Problem((*path, "unanimous"), "needs an outcome of kind vote")
    elif until.unanimous and isinstance(phase.outcome, Vote) and phase.outcome.voters is None:
        mute = [name for name in phase.agents if name not in speaking]
        if mute:
            yield Problem((*path, "unanimous"), f"can't be: {mute[0]} does not speak; name the voters")


def _outcome(outcome: Outcome, path: Path, speaking: set[str]) -> Iterator[Problem]:
    match outcome:
        case Vote(voters=names):
            yield from _names((*path, "voters"), names or (), speaking, _SILENT, "is named twice")
        case Choice(agents=names) | Number(agents=names):
            yield from _names((*path, "agents"), names or (), speaking, _SILENT, "is named twice")
        case Json(agent=name) | Said(agent=name):
            if name not in speaking:
                yield Problem((*path, "agent"), f"{name} {_SILENT}")
    if isinstance(outcome, Vote | Choice):
        folded = [option.casefold() for option in outcome.options]
        for place, option in enumerate(folded):
            if option in folded[:place]:
                yield Problem((*path, "options", place), "is given twice; case does not count")


def _turns(phases: list[Phase]) -> Iterator[Problem]:
    total = 0
    for index, phase in enumerate(phases):
        total += turns(phase)
        if total > MAX_TURNS:
            message = f"makes it {total} turns up to here; a run has at most {MAX_TURNS}"
            yield Problem(("phases", index, "rounds"), message)
            return


def turns(phase: Phase) -> int:
    """Return how many turns `phase` has, if nothing stops it early."""
    a_round = 2 * (len(phase.agents) - 1) if phase.topology == "hub" else len(speakers(phase))
    return a_round * phase.rounds
