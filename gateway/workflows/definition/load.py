"""A workflow file's text as a Definition, or every mistake in it with its line."""

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from gateway.validation import Complaint, complaints
from gateway.workflows.definition.checks import problems
from gateway.workflows.definition.mistakes import MalformedDefinition, Mistake, field_at
from gateway.workflows.definition.problem import Problem
from gateway.workflows.definition.schema import MAX_TEXT, Definition
from gateway.workflows.definition.source import Source, read
from gateway.workflows.definition.variables import resolved, variable_problems

_IN_YAML: Final = {
    "string_pattern_mismatch": "must be a name: a letter, then at most 63 letters, digits, _ and -",
    "string_type": "must be text; in quotes, if it looks like something else",
    "model_type": "must be a mapping; {} is an empty one",
    "dict_type": "must be a mapping; {} is an empty one",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
}
"""What pydantic's words are in a file's terms."""


def load(text: str, variables: Mapping[str, str]) -> Definition:
    """The workflow that `text` says, with `variables` in place of the file's own values.

    `definition.variables` are final texts. Those of the run are texts, not templates: what looks like `${…}` in them
    stays. Raises MalformedDefinition with all mistakes that are found, in one of three steps: the text is YAML, the
    data has the schema's form, and what it says can be done. Pure and thread-safe; a big file takes a fraction of a
    second, so a caller on an event loop gives it a thread.
    """
    source = read(text)
    try:
        definition = Definition.model_validate(source.data)
    except ValidationError as error:
        raise MalformedDefinition([_of_schema(one, source) for one in complaints(error, source.data)]) from None
    mistakes = [_of_run(name, value, definition) for name, value in variables.items()]
    found = variable_problems(definition.variables)
    values = dict(definition.variables)
    if not found and not any(mistakes):
        values, found = resolved(definition.variables, variables)
    found += problems(definition, values)
    if found or any(mistakes):
        raise MalformedDefinition([*filter(None, mistakes), *(_of_file(one, source) for one in found)])
    return definition.model_copy(update={"variables": values})


def _of_schema(complaint: Complaint, source: Source) -> Mistake:
    position = source.key(complaint.path) if complaint.of_key else source.position(complaint.path)
    return Mistake(field_at(complaint.path), _IN_YAML.get(complaint.kind, complaint.problem), position)


def _of_file(problem: Problem, source: Source) -> Mistake:
    if problem.offset is not None:
        position = source.reference(problem.path, problem.offset)
    else:
        position = source.key(problem.path) if problem.of_key else source.position(problem.path)
    return Mistake(field_at(problem.path), problem.problem, position)


def _of_run(name: str, value: str, definition: Definition) -> Mistake | None:
    field = field_at(("variables", name))
    if name not in definition.variables:
        return Mistake(field, "is given for the run, but the file has no such variable")
    if len(value) > MAX_TEXT:
        return Mistake(field, f"must not be longer than {MAX_TEXT} characters")
    return None
