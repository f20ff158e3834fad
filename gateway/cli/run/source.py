"""What is to be run: a file and its variables, and what is wrong with them, by file and line."""

import re
from collections.abc import Iterable
from pathlib import Path

from agentmem.errors import Violation
from gateway.cli.mistakes import Mistake, Mistakes
from gateway.cli.text import printable
from gateway.workflows.definition.load import load
from gateway.workflows.definition.mistakes import MalformedDefinition
from gateway.workflows.definition.source import MAX_BYTES

_POSITION = re.compile(r"line (\d+), column (\d+): (.*)", re.DOTALL)


def read(path: Path) -> str:
    """The file's text. Raises Mistake."""
    name = printable(str(path))
    try:
        if path.is_dir():
            raise Mistake(f"{name} is a directory; name a workflow file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Mistake(f"{name} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise Mistake(f"{name} is larger than {MAX_BYTES:,} bytes, the most that a workflow file may have")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Mistake(f"{name}:{line}: is not UTF-8") from error


def variables(settings: Iterable[str]) -> dict[str, str]:
    """`--set NAME=VALUE` as names and values. Raises Mistake."""
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise Mistake(f"--set {printable(setting)}: write NAME=VALUE")
        if name in given:
            raise Mistake(f"--set {printable(name)} is given more than once")
        given[name] = value
    return given


def check(path: Path, text: str, given: dict[str, str]) -> str:
    """The name of a workflow that can be run. Raises Mistakes."""
    try:
        return load(text, given).workflow
    except MalformedDefinition as error:
        raise refused(path, [mistake.violation() for mistake in error.mistakes]) from error


def refused(path: Path | None, violations: Iterable[Violation]) -> Mistakes:
    """What is wrong, a line for each: "FILE:LINE:COLUMN: field: problem" where it is in the file."""
    lines = []
    for violation in violations:
        position = _POSITION.fullmatch(violation.problem) if path is not None else None
        if position is None:
            lines.append(printable(f"Error: {violation.field}: {violation.problem}"))
        else:
            line, column, problem = position.groups()
            lines.append(printable(f"{path}:{line}:{column}: {violation.field}: {problem}"))
    return Mistakes(lines)
