"""What is wrong with a workflow file, and where: as one error that has all of it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from agentmem.errors import InvalidArgument, Violation
from gateway.validation import dotted

Path = tuple[str | int, ...]
"""The keys and indices that lead from the top of the file to a place in it."""

MAX_MISTAKES: Final = 50
_MAX_BYTES: Final = 4096  # the status travels in a trailer, whose readers take 8 KiB, as base64, beside the message
_MAX_FIELD: Final = 200


class Position(NamedTuple):
    """A place in the file's text; both from 1, in characters."""

    line: int
    column: int


class Mistake(NamedTuple):
    """One thing that is wrong. `field` is its dotted path; no position: it isn't in the file, but came with the run."""

    field: str
    problem: str
    position: Position | None = None

    def violation(self) -> Violation:
        """As the caller is told it."""
        where = f"line {self.position.line}, column {self.position.column}: " if self.position else ""
        return Violation(self.field, where + self.problem)


class MalformedDefinition(InvalidArgument):
    """A workflow file that can't be run. `mistakes` are told in the file's order, the first 50 of them at most."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda one: one.position or Position(0, 0)))
        first, *others = _told(self.mistakes)
        super().__init__(*first, others=others)


def field_at(path: Path) -> str:
    """`path` as `phases[0].center`; "definition" for the whole file."""
    text = dotted(path, "definition")
    return text if len(text) <= _MAX_FIELD else text[:_MAX_FIELD] + "…"


def _told(mistakes: Sequence[Mistake]) -> list[Violation]:
    """As many as the caller can be told, and the number of the others."""
    told: list[Violation] = []
    size = 0
    for mistake in mistakes:
        violation = mistake.violation()
        size += sum(len(part.encode()) for part in violation)
        if told and (size > _MAX_BYTES or (len(told) == MAX_MISTAKES - 1 and len(mistakes) > MAX_MISTAKES)):
            return [*told, Violation("definition", f"has {len(mistakes) - len(told)} more mistakes")]
        told.append(violation)
    return told
