"""What checks find, before it has a line."""

from typing import NamedTuple

from gateway.validation import printable
from gateway.workflows.definition.mistakes import Path


class Problem(NamedTuple):
    """What is wrong at `path`: its key, if `of_key`; the `${` at `offset` in its text, if there is an offset."""

    path: Path
    problem: str
    of_key: bool = False
    offset: int | None = None


def listed(names: list[str]) -> str:
    """Names as a message has them."""
    return ", ".join(printable(name) for name in names)
