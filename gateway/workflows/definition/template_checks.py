"""Checks of what texts may name: variables, what has a value where the text is read, what all who read it may know."""

from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from gateway.api.complaints import shown_name
from gateway.workflows.definition.checks import Path, Problem
from gateway.workflows.definition.schema import MAX_TEXT, Choice, Definition, Json, Number, Outcome, Phase, Said, Vote
from gateway.workflows.definition.templates import fill, filled_length, misspelled, references
from gateway.workflows.topology import hear_all, present, speakers

MAX_REPEATS: Final = 16
"""How often a text may name one thing that has no value before the run."""

_BUILT_IN: Final = frozenset({"agent", "phase", "round", "speaker", "listeners", "text", "said", "outcome"})
"""Names besides variables."""
_MISSPELLED: Final = "has a ${ that no name and } follow; write $${ for the text ${"
TOO_LONG: Final = f"must not be longer than {MAX_TEXT} characters, variables filled in"


def variable_problems(templates: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong whatever values a run brings."""
    for name in templates:
        yield from _variable(name, templates)
    yield from _cycle(templates)


def resolved(templates: Mapping[str, str], given: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """Return the variables' final texts, and the problems of those that are too long. `given` values are final."""
    values = dict(given)
    found = []
    for name in TopologicalSorter({name: references(text) for name, text in templates.items()}).static_order():
        if name not in given:
            values[name] = ""
            if filled_length(templates[name], values) > MAX_TEXT:
                found.append(Problem(("variables", name), TOO_LONG))
            else:
                values[name] = fill(templates[name], values)
    return {name: values[name] for name in templates}, found


def text_problems(definition: Definition, variables: Mapping[str, str]) -> Iterator[Problem]:
    """`variables` are final texts."""
    phases = {phase.name: index for index, phase in reversed(list(enumerate(definition.phases)))}
    for text in _texts(definition):
        yield from _text(text, definition, phases, variables)


def _variable(name: str, templates: Mapping[str, str]) -> Iterator[Problem]:
    path, text = ("variables", name), templates[name]
    if name in _BUILT_IN:
        yield Problem(path, f"{name} has a meaning of its own in templates; choose another name", of_key=True)
    if misspelled(text):
        yield Problem(path, _MISSPELLED)
    for named in dict.fromkeys(references(text)):
        if named.partition(".")[0] in _BUILT_IN:
            yield Problem(path, f"{shown_name(named)} has no value in a variable")
        elif named not in templates:
            yield Problem(path, _no_variable(named), given=named, known=templates)


def _no_variable(name: str) -> str:
    return f"{shown_name(name)} is none of the file's variables"


def _cycle(templates: Mapping[str, str]) -> Iterator[Problem]:
    try:
        TopologicalSorter({name: references(text) for name, text in templates.items()}).prepare()
    except CycleError as error:
        names = error.args[1][::-1]  # each is named by the next
        yield Problem(("variables", names[0]), f"refers to itself: {_listed(names)}")


class _Text(NamedTuple):
    """`names` are the built-in ones that have a value in `text`; `earlier` phases are over by then."""

    path: Path
    text: str
    names: frozenset[str]
    readers: tuple[str, ...] = ()
    earlier: int = 0


def _texts(definition: Definition) -> Iterator[_Text]:
    heard = frozenset({"agent", "speaker", "listeners"})
    yield _Text(("defaults", "hears"), definition.defaults.hears, heard | {"text"})
    yield _Text(("defaults", "notice"), definition.defaults.notice, heard)
    yield _Text(("defaults", "cue"), definition.defaults.cue, frozenset({"agent", "phase", "round"}))
    for name, agent in definition.agents.items():
        yield _Text(("agents", name, "system"), agent.system, frozenset({"agent"}), (name,))
    for index, phase in enumerate(definition.phases):
        path = ("phases", index)
        names = frozenset({"agent", "phase", "outcome", "said"})
        yield _Text((*path, "opening"), phase.opening, names, present(phase), index)
        if isinstance(phase.prompts, str):
            yield _Text((*path, "prompts"), phase.prompts, names | {"round"}, speakers(phase), index)
            continue
        rest = tuple(name for name in speakers(phase) if name not in phase.prompts)
        for name, text in phase.prompts.items():
            readers = rest if name == "*" else (name,)
            yield _Text((*path, "prompts", name), text, names | {"round"}, readers, index)


def _text(
    text: _Text, definition: Definition, phases: Mapping[str, int], variables: Mapping[str, str]
) -> Iterator[Problem]:
    if misspelled(text.text):
        yield Problem(text.path, _MISSPELLED)
    if filled_length(text.text, variables) > MAX_TEXT:
        yield Problem(text.path, TOO_LONG)
    for name, often in Counter(references(text.text)).items():
        if message := _reference(name, text, definition, phases):
            known = definition.variables if name.partition(".")[0] not in _BUILT_IN else ()
            yield Problem(text.path, message, given=name, known=known)
        elif often > MAX_REPEATS and name not in variables:
            yield Problem(text.path, f"names {shown_name(name)} more than {MAX_REPEATS} times")


def _reference(name: str, text: _Text, definition: Definition, phases: Mapping[str, int]) -> str | None:
    first, _, rest = name.partition(".")
    shown = shown_name(name)
    if first not in _BUILT_IN:
        return None if name in definition.variables else _no_variable(name)
    if first not in text.names:
        return f"{shown} has no value here"
    if first not in ("outcome", "said"):
        return f"{first} has no parts: {shown}" if rest else None
    phase_name, _, part = rest.partition(".")
    if not part:
        return f"{shown} must be {'outcome.PHASE.FIELD' if first == 'outcome' else 'said.PHASE.AGENT'}"
    if phases.get(phase_name, text.earlier) >= text.earlier:
        return f"{shown} is of no earlier phase"
    phase = definition.phases[phases[phase_name]]
    if first == "said":
        return _said(part, text, phase)
    if phase.outcome is None:
        return f"{shown} is of a phase that has no outcome"
    there, fields = _outcome_field(phase.outcome, part, phase)
    return None if there else f"{shown} is no field of that outcome; it has {fields}"


def _said(agent: str, text: _Text, phase: Phase) -> str | None:
    if agent not in speakers(phase):
        return f"{shown_name(agent)} does not speak in {phase.name}"
    knowing = hear_all(phase, agent) | {agent}
    if unknowing := [reader for reader in text.readers if reader not in knowing]:
        return f"tells {_listed(unknowing[:3])} what {agent} said in {phase.name} to others"
    return None


def _outcome_field(outcome: Outcome, field: str, phase: Phase) -> tuple[bool, str]:
    """Return whether an outcome has a field, and which ones it has."""
    first, _, rest = field.partition(".")
    match outcome:
        case Vote():
            there = (
                field in ("winner", "unanimous")
                or (first == "tally" and rest in outcome.options)
                or (first == "votes" and rest in (outcome.voters or phase.agents))
            )
            return there, "winner, tally.OPTION, votes.AGENT and unanimous"
        case Choice():
            return first == "choices" and rest in (outcome.agents or phase.agents), "choices.AGENT"
        case Number():
            there = field == "mean" or (first == "numbers" and rest in (outcome.agents or phase.agents))
            return there, "numbers.AGENT and mean"
        case Json():
            properties = outcome.schema_.get("properties")
            known = not (isinstance(properties, dict) and properties) or {rest, rest.partition(".")[0]} & {*properties}
            return first == "value" and bool(rest and known), "value.KEY, of the keys that its schema names"
        case Said():
            return field == "text", "text"


def _listed(names: list[str]) -> str:
    return ", ".join(shown_name(name) for name in names)
