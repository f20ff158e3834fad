"""What texts may name: variables, what has a value where the text is read, and what all who read it may know."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from gateway.validation import printable
from gateway.workflows.audience import hear_all, present, speakers
from gateway.workflows.definition.mistakes import MAX_MISTAKES, Path
from gateway.workflows.definition.problem import Problem, listed
from gateway.workflows.definition.schema import MAX_TEXT, Choice, Definition, Json, Number, Outcome, Phase, Said, Vote
from gateway.workflows.definition.templates import misspelled, references
from gateway.workflows.definition.variables import BUILT_IN, MISSPELLED, TOO_LONG, filled_length

MAX_REPEATS: Final = 16
"""How often a text may name one thing that has no value before the run: what was said can be long."""


class _Text(NamedTuple):
    """A template, the built-in names that have a value in it, who reads it, and how many phases are over by then."""

    path: Path
    text: str
    names: frozenset[str]
    readers: tuple[str, ...] = ()
    earlier: int = 0


def text_problems(definition: Definition, variables: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with the templates of `definition`; the final texts of its variables are `variables`."""
    phases = {phase.name: index for index, phase in reversed(list(enumerate(definition.phases)))}
    for text in _texts(definition):
        # More than can be told: a text may have thousands.
        yield from islice(_text_problems(text, definition, phases, variables), MAX_MISTAKES)


def _text_problems(
    text: _Text, definition: Definition, phases: Mapping[str, int], variables: Mapping[str, str]
) -> Iterator[Problem]:
    yield from (Problem(text.path, MISSPELLED, offset=offset) for offset in misspelled(text.text))
    if filled_length(text.text, variables) > MAX_TEXT:
        yield Problem(text.path, TOO_LONG)
    often: Counter[str] = Counter()
    wrong: dict[str, str | None] = {}
    for name, offset in references(text.text):
        often[name] += 1
        if name not in wrong:
            wrong[name] = _problem(name, text, definition, phases)
        if problem := wrong[name]:
            yield Problem(text.path, problem, offset=offset)
        elif often[name] == MAX_REPEATS + 1 and name not in variables:
            yield Problem(text.path, f"names {printable(name)} more than {MAX_REPEATS} times", offset=offset)


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
        for part, text, readers in _prompts(phase):
            yield _Text((*path, "prompts", *part), text, names | {"round"}, readers, index)


def _prompts(phase: Phase) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    if isinstance(phase.prompts, str):
        yield (), phase.prompts, speakers(phase)
        return
    for name, text in phase.prompts.items():
        rest = tuple(other for other in speakers(phase) if other not in phase.prompts)
        yield (name,), text, rest if name == "*" else (name,)


def _problem(name: str, text: _Text, definition: Definition, phases: Mapping[str, int]) -> str | None:
    """What is wrong with naming `name` in `text`."""
    first, _, rest = name.partition(".")
    if first not in BUILT_IN:
        return None if name in definition.variables else f"{printable(name)} is none of the file's variables"
    if first not in text.names:
        return f"{printable(name)} has no value here"
    if first not in ("outcome", "said"):
        return f"{first} has no parts: {printable(name)}" if rest else None
    phase_name, _, part = rest.partition(".")
    if not part:
        return f"{printable(name)} must be {'outcome.PHASE.FIELD' if first == 'outcome' else 'said.PHASE.AGENT'}"
    if phases.get(phase_name, text.earlier) >= text.earlier:
        return f"{printable(name)} is of no earlier phase"
    phase = definition.phases[phases[phase_name]]
    if first == "said":
        return _said_problem(part, text, phase)
    if phase.outcome is None:
        return f"{printable(name)} is of a phase that has no outcome"
    if not _has_field(phase.outcome, part, phase):
        return f"{printable(name)} is no field of that outcome; it has {_fields(phase.outcome)}"
    return None


def _said_problem(agent: str, text: _Text, phase: Phase) -> str | None:
    if agent not in speakers(phase):
        return f"{printable(agent)} does not speak in {phase.name}"
    knowing = hear_all(phase, agent) | {agent}
    if unknowing := [reader for reader in text.readers if reader not in knowing]:
        return f"tells {listed(unknowing[:3])} what {agent} said in {phase.name} to others"
    return None


def _has_field(outcome: Outcome, field: str, phase: Phase) -> bool:
    first, _, rest = field.partition(".")
    match outcome:
        case Vote():
            return (
                field in ("winner", "unanimous")
                or (first == "tally" and rest in outcome.options)
                or (first == "votes" and rest in (outcome.voters or phase.agents))
            )
        case Choice():
            return first == "choices" and rest in (outcome.agents or phase.agents)
        case Number():
            return field == "mean" or (first == "numbers" and rest in (outcome.agents or phase.agents))
        case Json():
            properties = outcome.schema_.get("properties")
            known = properties if isinstance(properties, dict) and properties else None
            return (
                first == "value" and bool(rest) and (known is None or rest in known or rest.partition(".")[0] in known)
            )
        case Said():
            return field == "text"


def _fields(outcome: Outcome) -> str:
    match outcome:
        case Vote():
            return "winner, tally.OPTION, votes.AGENT and unanimous"
        case Choice():
            return "choices.AGENT"
        case Number():
            return "numbers.AGENT and mean"
        case Json():
            return "value.KEY, of the keys that its schema names"
        case Said():
            return "text"
