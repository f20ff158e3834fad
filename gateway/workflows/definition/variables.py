"""A file's variables: what is wrong with them, and their values.

A variable's text may name other variables, and nothing else. A value that a run brings is a text, and no template.
"""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Final

from gateway.validation import printable
from gateway.workflows.definition.mistakes import MAX_MISTAKES
from gateway.workflows.definition.problem import Problem, listed
from gateway.workflows.definition.schema import MAX_TEXT
from gateway.workflows.definition.templates import fill, misspelled, references

BUILT_IN: Final = frozenset({"agent", "phase", "round", "speaker", "listeners", "text", "said", "outcome"})
"""What templates name beside variables; which of them have a value depends on the text."""

MISSPELLED: Final = "has a ${ that no name and } follow; write $${ for the text ${"
TOO_LONG: Final = f"must not be longer than {MAX_TEXT} characters, variables filled in"


def variable_problems(templates: Mapping[str, str]) -> list[Problem]:
    """What is wrong with `variables`, whatever values a run brings."""
    found: list[Problem] = []
    for name in templates:
        found += islice(_of_variable(name, templates), MAX_MISTAKES)  # a text may have thousands
    found += [Problem(("variables", names[0]), f"refers to itself: {listed(names)}") for names in _cycles(templates)]
    return found


def _of_variable(name: str, templates: Mapping[str, str]) -> Iterator[Problem]:
    path, text = ("variables", name), templates[name]
    if name in BUILT_IN:
        yield Problem(path, f"{name} has a meaning of its own in templates; choose another name", of_key=True)
    yield from (Problem(path, MISSPELLED, offset=offset) for offset in misspelled(text))
    for reference in references(text):
        if reference.name.partition(".")[0] in BUILT_IN:
            yield Problem(path, f"{printable(reference.name)} has no value in a variable", offset=reference.offset)
        elif reference.name not in templates:
            problem = f"{printable(reference.name)} is none of the file's variables"
            yield Problem(path, problem, offset=reference.offset)


def resolved(templates: Mapping[str, str], given: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """The variables' final texts, and those that are too long for one.

    `given` values, of which each is the text of a variable, stay as they are. `variable_problems` must have found
    nothing in `templates`.
    """
    values = dict(given)
    found = []
    for name in TopologicalSorter({name: _names(text) for name, text in templates.items()}).static_order():
        if name in given:
            continue
        if filled_length(templates[name], values) > MAX_TEXT:
            found.append(Problem(("variables", name), TOO_LONG))
            values[name] = ""
        else:
            values[name] = fill(templates[name], values)
    return {name: values[name] for name in templates}, found


def filled_length(text: str, values: Mapping[str, str]) -> int:
    """How long `text` becomes with `values`, in characters; references to what isn't there count nothing."""
    names = _names(text)
    return len(text) + sum(len(values.get(name, "")) - len(f"${{{name}}}") for name in names)


def _names(text: str) -> list[str]:
    return [reference.name for reference in references(text)]


def _cycles(templates: Mapping[str, str]) -> list[list[str]]:
    """Variables that refer to each other, from the first in the file round to it again; some cycles, if many cross."""
    graph = {name: [other for other in _names(text) if other in templates] for name, text in templates.items()}
    order = {name: place for place, name in enumerate(templates)}
    found: list[list[str]] = []
    while len(found) < MAX_MISTAKES:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle = error.args[1][:0:-1]  # each is named by the next
            first = cycle.index(min(cycle, key=order.__getitem__))
            found.append([*cycle[first:], *cycle[: first + 1]])
            graph[cycle[first]] = []
        else:
            break
    return found
